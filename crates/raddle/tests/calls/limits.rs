//! Calls at the limits of a link.

use std::{collections::BTreeMap, time::Duration};

use raddle::{Call, CallError, core::routine::EncodedArgs};

use crate::{
    routines::{self, Point},
    start_pool, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn large_arguments_that_do_not_fit_harm_no_other_call() {
    within(120, async {
        let pool = start_pool(1).await;
        let other = tokio::spawn(routines::rest(1000).on(&pool));
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The argument that does not fit is named in the message.
        let text = "x".repeat(2 << 20);
        let points = BTreeMap::from([("a", text.clone())]);
        let unfit: Call<Vec<Point>> =
            Call::new("flip", EncodedArgs::new(1).argument("points", &points));
        let error = unfit.on(&pool).await.unwrap_err();
        assert!(
            matches!(&error, CallError::Arguments(message) if message.contains("'points'")),
            "{error:.200}"
        );
        assert_eq!(other.await.unwrap(), Ok(pool.workers()[0].pid));
    })
    .await;
}
