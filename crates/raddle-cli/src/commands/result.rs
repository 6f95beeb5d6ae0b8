//! `raddle result`: the output and the exit code of a finished task.

use raddle_view::{
    exit_code,
    task::{exit_remark, result_record},
};
use tokio::time::Instant;

use crate::{
    args::ResultArgs,
    context::Context,
    error::{Failure, Outcome},
    follow::{self, PrintedReasons},
    output, result, tid,
};

pub(super) async fn result(context: &Context, args: &ResultArgs) -> Outcome {
    let broker = context.open_existing().await?;
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout.0);
    let mut task = tid::find_task(&*broker, args.tid).await?;
    if !task.state.is_terminal() {
        if !args.wait {
            let hint = "wait for it with --wait, or see 'raddle task explain'";
            return Err(Failure::Usage(format!(
                "task {} is not finished, but {}: {hint}",
                task.tid, task.state
            )));
        }
        follow::check_not_within(&*broker, task.tid).await?;
        let finished = follow::wait_until_finished(&*broker, task.tid, deadline);
        follow::explain_while(
            context,
            &*broker,
            task.tid,
            &mut PrintedReasons::default(),
            finished,
        )
        .await?;
        task = tid::get_task(&*broker, task.tid).await?;
    }
    if context.json {
        output::print_json(&result_record(&*broker, &task).await?)?;
    } else {
        result::print(&*broker, &task).await?;
        if let Some(remark) = exit_remark(task.tid, &task.spec, task.report.as_ref()) {
            context.note(remark);
        }
    }
    result::note_lost_output(context, &*broker, &task).await?;
    Ok(exit_code::of_task(task.state, task.report.as_ref()))
}
