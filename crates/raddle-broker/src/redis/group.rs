//! Group commit: what callers ask for while a script is on its way goes together in the next one.
//!
//! A script costs the server as much for its beginning and its end as for what it does in between, and a caller that waits loses nothing when others
//! are served with it. There is no timer on the way: a call that comes alone is sent at once. Each caller has its own answer, as if it had been alone.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

use super::Core;
use crate::{Error, Result, doubt::leaves_doubt};

/// What one script does for several callers.
pub(super) trait Shared: Sized + Send + Sync + 'static {
    /// What one caller is answered.
    type Answer: Send;

    /// How much one script takes at most: nobody else is served meanwhile. A single part that is larger goes alone.
    const MOST: usize;

    /// How much it is.
    fn weight(&self) -> usize;

    /// Whether one script can do both.
    fn goes_with(&self, other: &Self) -> bool {
        let _ = other;
        true
    }

    /// Where those of its kind are gathered.
    fn group(core: &Core) -> &Group<Self>;

    /// Does it for all in one script, and answers each. Fails as a whole.
    fn send(core: &Core, parts: &[&Self]) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;
}

/// Parts that wait for their script.
pub(super) struct Group<P: Shared> {
    waiting: Mutex<VecDeque<Call<P>>>,
    /// Held while a script is on its way.
    turn: tokio::sync::Mutex<()>,
}

struct Call<P: Shared> {
    part: P,
    reply: oneshot::Sender<Result<P::Answer>>,
}

/// How long a call waits for a script that is not answered. After that it goes without it: a server that is away keeps each caller waiting for as long
/// as that has patience, and not one after the other.
const PATIENCE: Duration = Duration::from_millis(100);

impl<P: Shared> Default for Group<P> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }
}

impl<P: Shared> Group<P> {
    /// Has `part` done, with what others ask for meanwhile. One whose caller is gone before its turn is not sent.
    pub(super) async fn ask(core: &Arc<Core>, part: P) -> Result<P::Answer> {
        let (reply, answer) = oneshot::channel();
        P::group(core).waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(Call { part, reply });
        let core = Arc::clone(core);
        // A task for each call, which sends what waits when its turn comes, if anything is left: the caller may be gone while others wait.
        tokio::spawn(async move {
            let group = P::group(&core);
            let _turn = timeout(PATIENCE, group.turn.lock()).await;
            let calls = group.next();
            if !calls.is_empty() {
                send(&core, calls).await;
            }
        });
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// The next parts that go together.
    fn next(&self) -> Vec<Call<P>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|call| !call.reply.is_closed());
        let mut calls: Vec<Call<P>> = waiting.pop_front().into_iter().collect();
        let mut weight: usize = calls.iter().map(|call| call.part.weight()).sum();
        let mut at = 0;
        while let (Some(first), Some(call)) = (calls.first(), waiting.get(at)) {
            let with_it = weight + call.part.weight();
            if !first.part.goes_with(&call.part) {
                at += 1;
            } else if with_it > P::MOST {
                break;
            } else {
                weight = with_it;
                calls.extend(waiting.remove(at));
            }
        }
        calls
    }
}

/// Sends parts together, and tells each caller what became of its own.
async fn send<P: Shared>(core: &Core, calls: Vec<Call<P>>) {
    let (parts, replies): (Vec<P>, Vec<_>) = calls.into_iter().map(|Call { part, reply }| (part, reply)).unzip();
    let together = P::send(core, &parts.iter().collect::<Vec<_>>()).await;
    match together {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                let _ = reply.send(Ok(answer));
            }
        }
        // What one of them asks for must not fail the others, and nothing was done: each is told what it would have been told alone.
        Err(error) if parts.len() > 1 && is_refusal(&error) => {
            for (reply, part) in replies.into_iter().zip(&parts) {
                let alone = P::send(core, &[part]).await.and_then(|mut answers| answers.pop().ok_or(Error::Closed));
                let _ = reply.send(alone);
            }
        }
        Err(error) => replies.into_iter().for_each(|reply| drop(reply.send(Err(error.clone())))),
    }
}

/// Whether it is what was asked for that the server does not take. Where it takes nothing from anybody, or it is not known what it has done, that is the
/// answer to all of them.
fn is_refusal(error: &Error) -> bool {
    !error.is_retryable() && !leaves_doubt(error)
}
