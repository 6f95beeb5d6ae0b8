//! Group commit: what callers ask for while a script is on its way goes together in the next one.
//!
//! A script costs the server as much for its beginning and its end as for what it does in between, and a caller that waits loses nothing when others
//! are served with it. There is no timer on the way: who comes alone is sent at once. Each caller has its own answer, as if it had been alone.

use std::{
    collections::VecDeque,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::sleep};

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
pub(super) struct Group<P: Shared>(Mutex<State<P>>);

struct State<P: Shared> {
    waiting: VecDeque<Call<P>>,
    /// Whether one is on its way that will see to those that wait.
    under_way: bool,
}

struct Call<P: Shared> {
    part: P,
    reply: oneshot::Sender<Result<P::Answer>>,
}

/// How long others wait for a script that is not answered. After that they go without it: a server that is away keeps each caller waiting for as long
/// as that has patience, and not one after the other.
const PATIENCE: Duration = Duration::from_millis(100);

impl<P: Shared> Default for Group<P> {
    fn default() -> Self {
        Self(Mutex::new(State { waiting: VecDeque::new(), under_way: false }))
    }
}

impl<P: Shared> Group<P> {
    /// Has `part` done, with what others ask for meanwhile. One whose caller is gone before its turn is not sent.
    pub(super) async fn ask(core: &Arc<Core>, part: P) -> Result<P::Answer> {
        let (reply, answer) = oneshot::channel();
        let is_first = {
            let mut state = P::group(core).state();
            state.waiting.push_back(Call { part, reply });
            !mem::replace(&mut state.under_way, true)
        };
        if is_first {
            // Not by the caller, who may be gone while others wait. It ends when nobody waits any more.
            Turn::<P>::begin(core);
        }
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// The next parts that go together. When there are none, nobody is under way any more.
    fn next(&self) -> Vec<Call<P>> {
        let mut state = self.state();
        state.waiting.retain(|call| !call.reply.is_closed());
        let mut calls: Vec<Call<P>> = state.waiting.pop_front().into_iter().collect();
        let mut weight: usize = calls.iter().map(|call| call.part.weight()).sum();
        let mut at = 0;
        while let (Some(first), Some(call)) = (calls.first(), state.waiting.get(at)) {
            let with_it = weight + call.part.weight();
            if !first.part.goes_with(&call.part) {
                at += 1;
            } else if with_it > P::MOST {
                break;
            } else {
                weight = with_it;
                calls.extend(state.waiting.remove(at));
            }
        }
        state.under_way = !calls.is_empty();
        calls
    }

    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sees to those that wait, until there are none or another does.
struct Turn<P: Shared> {
    core: Arc<Core>,
    /// Whether another sees to the rest.
    is_relieved: bool,
    kind: PhantomData<P>,
}

impl<P: Shared> Turn<P> {
    fn begin(core: &Arc<Core>) {
        let turn = Self { core: Arc::clone(core), is_relieved: false, kind: PhantomData };
        // Boxed, for it may begin another like itself.
        let turn: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(turn.run());
        tokio::spawn(turn);
    }

    async fn run(mut self) {
        while !self.is_relieved {
            let calls = P::group(&self.core).next();
            if calls.is_empty() {
                self.is_relieved = true;
                return;
            }
            self.see_to(calls).await;
        }
    }

    async fn see_to(&mut self, calls: Vec<Call<P>>) {
        let core = Arc::clone(&self.core);
        let answering = answer(&core, calls);
        tokio::pin!(answering);
        tokio::select! {
            biased;
            () = &mut answering => return,
            () = sleep(PATIENCE) => {}
        }
        self.is_relieved = true;
        Self::begin(&self.core);
        answering.await;
    }
}

/// A runtime that ends in the middle must not leave others waiting for it in the next.
impl<P: Shared> Drop for Turn<P> {
    fn drop(&mut self) {
        if !self.is_relieved {
            let mut state = P::group(&self.core).state();
            state.under_way = false;
            state.waiting.clear();
        }
    }
}

/// Sends parts together, and tells each caller what became of its own.
async fn answer<P: Shared>(core: &Core, calls: Vec<Call<P>>) {
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
