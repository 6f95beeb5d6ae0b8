//! The cost of a claim with a million tasks waiting, against that with hardly any.

use std::time::Instant;

use raddle_broker::Broker;

use crate::{
    Plan,
    bed::Bed,
    queue::{enqueue, finish, register, request},
    stats::{Verdict, median, micros, ratio, show},
};

/// Claims timed in each round.
const CLAIMS: usize = 200;

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let many = if plan.quick { 100_000 } else { 1_000_000 };
    let (near_empty, full) = (Bed::new(), Bed::new());
    let (few_broker, many_broker) = (near_empty.broker(), full.broker());
    println!(
        "submitting {many} tasks took {:.1} s",
        enqueue(&full, &*many_broker, many).as_secs_f64()
    );
    let (mut few, mut lots) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        enqueue(&near_empty, &*few_broker, CLAIMS);
        few.push(claim_cost(&near_empty, &*few_broker));
        lots.push(claim_cost(&full, &*many_broker));
    }
    show("claim of one, queue nearly empty", "us", &few);
    show("claim of one, a million waiting", "us", &lots);
    vec![Verdict::at_most(
        "claim with a million waiting, of one nearly empty",
        ratio(&lots, &few),
        1.5,
    )]
}

/// The median time of a claim, in microseconds. What was claimed is finished outside the clock.
fn claim_cost(bed: &Bed, broker: &dyn Broker) -> f64 {
    bed.wait(async {
        let owner = register(broker).await;
        let mut times = Vec::with_capacity(CLAIMS);
        let mut claims = Vec::with_capacity(CLAIMS);
        for _ in 0..CLAIMS {
            let began = Instant::now();
            claims.extend(
                broker
                    .claim(request(owner, 1))
                    .await
                    .expect("there are tasks"),
            );
            times.push(micros(began.elapsed()));
        }
        assert_eq!(claims.len(), CLAIMS);
        broker
            .complete(claims.iter().map(finish).collect())
            .await
            .expect("they are ours");
        broker
            .deregister(owner, None)
            .await
            .expect("it was registered");
        median(&times)
    })
}
