//! An HTTP service whose work runs in a pool: see docs/tutorials/rust-service.md.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use raddle::{CallError, WorkerPool};

/// A plain `fn` may block: each call has a thread of a worker for itself.
#[raddle::routine]
fn count_primes(below: u64) -> (u64, u32) {
    let is_prime = |n: &u64| {
        (2..)
            .take_while(|d| d * d <= *n)
            .all(|d| !n.is_multiple_of(d))
    };
    let primes = (2..below).filter(is_prime).count();
    (primes as u64, std::process::id())
}

/// Stands for a bug in a C library.
#[raddle::routine]
fn crash() {
    std::process::abort()
}

type Answer = Result<String, (StatusCode, &'static str)>;

async fn primes(State(pool): State<Arc<WorkerPool>>, Path(below): Path<u64>) -> Answer {
    let call = count_primes(below).timeout(Duration::from_secs(1));
    let (primes, pid) = call.on(&pool).await.map_err(status)?;
    Ok(format!("{primes} primes by process {pid}\n"))
}

async fn fall_over(State(pool): State<Arc<WorkerPool>>) -> Answer {
    crash().on(&pool).await.map_err(status)?;
    Ok("still here\n".into())
}

fn status(error: CallError) -> (StatusCode, &'static str) {
    match error {
        CallError::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "too late\n"),
        CallError::Lost { .. } => (StatusCode::BAD_GATEWAY, "the worker died\n"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "failed\n"),
    }
}

#[raddle::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = WorkerPool::builder().name("primes").size(2).start().await?;
    let routes = Router::new()
        .route("/primes/{below}", get(primes))
        .route("/crash", get(fall_over))
        .with_state(Arc::new(pool));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on {}", listener.local_addr()?);
    let interrupted = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, routes)
        .with_graceful_shutdown(interrupted)
        .await?;
    println!("stopped");
    Ok(())
}
