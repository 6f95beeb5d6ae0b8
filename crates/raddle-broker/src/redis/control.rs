//! Control words: obeyed here while nobody runs the task, passed on otherwise.

use raddle_core::{Control, QueueName, Tid, obey, queue_name::Port};

use super::{
    Redis,
    link::Sure,
    record::flag_of,
    script,
    value::{arg, list, text},
};
use crate::{Delivered, Delivery, Error, Result};

impl Redis {
    pub(super) async fn send_word(&self, tid: Tid, message: Control) -> Result<Delivered> {
        loop {
            if let Some(delivered) = self.try_word(tid, &message).await? {
                return Ok(delivered);
            }
        }
    }

    /// Obeys a word, or passes it on; nothing if the task was with nobody by then.
    async fn try_word(&self, tid: Tid, message: &Control) -> Result<Option<Delivered>> {
        let applied = self
            .alter(tid, Sure::Durable, |task, draft| {
                if let Some(state) = task.end() {
                    return Err(Error::Finished(tid, state));
                }
                if task.record.is_active() {
                    return Ok(None);
                }
                draft.obey(message);
                Ok(Some(draft.state()))
            })
            .await?;
        if let Some(state) = applied {
            return Ok(Some(Delivered::Applied(state)));
        }
        let place = self.core.keys.queue(&QueueName::Task(tid, Port::CtrlIn));
        let args = vec![arg(place.prefix), Vec::new(), arg("active"), message.to_text().into_bytes()];
        let sent = list(self.link().change(&script::PUT, vec![place.key], args, Sure::Durable).await?);
        Ok((!sent.is_empty()).then_some(Delivered::Sent))
    }

    /// Takes the messages to what `owner` has, itself included, in the order in which they were sent.
    pub(super) async fn take_words(&self, owner: Tid) -> Result<Vec<Delivery>> {
        // Almost every look finds nothing: it must not cost the server a write.
        let mut pipe = redis::pipe();
        pipe.cmd("ZCARD").arg(self.core.keys.of("words"));
        if self.link().pipe(pipe).await?.pop().map(super::value::number) == Some(0) {
            return Ok(Vec::new());
        }
        // What they mean is decided here: so those are taken that were read.
        let words = list(self.link().look(&script::WORDS, Vec::new(), vec![arg(owner)]).await?);
        let flagged = |word: String| {
            let flag = arg(flag(&word));
            [word.into_bytes(), flag]
        };
        let args: Vec<Vec<u8>> = words.into_iter().map(text).flat_map(flagged).collect();
        if args.is_empty() {
            return Ok(Vec::new());
        }
        let taken = list(self.link().change(&script::TELL, Vec::new(), args, Sure::Done).await?);
        let parse = |word: redis::Value| {
            let (tid, id, body) = parts(&text(word))?;
            Some((id, Delivery { tid, body }))
        };
        let mut taken: Vec<(String, Delivery)> = taken.into_iter().filter_map(parse).collect();
        taken.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(taken.into_iter().map(|(_, delivery)| delivery).collect())
    }
}

/// What a stored word adds to the flags of its task: something, if it ends that.
fn flag(word: &str) -> u8 {
    let told = |(_, _, body): (Tid, String, String)| obey::told(None, &body.parse().ok()?);
    flag_of(parts(word).and_then(told))
}

/// A word as it is stored: it stands behind the ids of its task and its own.
fn parts(word: &str) -> Option<(Tid, String, String)> {
    let mut parts = word.splitn(3, ':');
    Some((parts.next()?.parse().ok()?, parts.next()?.to_owned(), parts.next()?.to_owned()))
}
