//! Tokens: records in a queue of the broker, with the SHA-256 of the token and never the token.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use raddle_broker::{Broker, Message, MessageTransaction, PeekRequest};
use raddle_model::{QueueName, Tid};
use serde::{Deserialize, Serialize};

use super::{Right, Rights, Role, random_bytes, sha256, to_hex};

/// The queue of the records.
pub(crate) const QUEUE: &str = "raddle.web.tokens";
/// The most tokens that are read. Each is made by hand.
const MAX_TOKENS: u32 = 1000;
/// How long a token that was revoked may still be taken.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// A token that the broker knows, without the token itself.
#[derive(Clone, Debug, Serialize)]
pub struct Token {
    /// Its id.
    pub id: Tid,
    #[serde(flatten)]
    record: Record,
}

/// A token to add.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The name of the person or program that uses it.
    pub name: String,
    /// The role.
    pub role: Role,
    /// Rights besides those of the role.
    pub rights: Vec<Right>,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    role: Role,
    #[serde(default)]
    rights: Vec<Right>,
    #[serde(default)]
    expires_at: Option<Timestamp>,
    /// In hexadecimal. `list` does not show it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    sha256: String,
}

impl Token {
    /// The name.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// The role.
    pub fn role(&self) -> Role {
        self.record.role
    }

    /// The rights: those of the role, and those that were named.
    pub fn rights(&self) -> Rights {
        let named = self.record.rights.iter().copied();
        self.record.role.rights().iter().chain(named).collect()
    }

    /// When it expires.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.record.expires_at
    }

    /// Whether it has not expired.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.record.expires_at.is_none_or(|at| now < at)
    }

    fn parse(message: Message) -> Option<Self> {
        // A record that a newer version wrote lets nobody in.
        let record = serde_json::from_str(&message.body).ok()?;
        Some(Self {
            id: message.id,
            record,
        })
    }
}

/// A new token as text.
pub fn new_token() -> String {
    format!("raddle_{}", to_hex(&random_bytes()))
}

/// The SHA-256 of a token.
pub fn hash_token(token: &str) -> [u8; 32] {
    sha256(token)
}

/// Adds a token. Returns its id and the token, which is not stored.
pub async fn add_token(broker: &dyn Broker, new: NewToken) -> raddle_broker::Result<(Tid, String)> {
    let token = new_token();
    let record = Record {
        name: new.name,
        role: new.role,
        rights: new.rights,
        expires_at: new.expires_at,
        sha256: to_hex(&sha256(&token)),
    };
    let body = serde_json::to_string(&record).expect("a record has only string keys");
    let ids = broker.put(queue(), vec![body]).await?;
    Ok((ids[0], token))
}

/// All tokens, without their hashes.
pub async fn list_tokens(broker: &dyn Broker) -> raddle_broker::Result<Vec<Token>> {
    let mut tokens = read_tokens(broker).await?;
    tokens
        .iter_mut()
        .for_each(|token| token.record.sha256.clear());
    Ok(tokens)
}

/// Revokes the token with this id, or all with this name. Returns how many there were.
pub async fn revoke_token(broker: &dyn Broker, name: &str) -> raddle_broker::Result<u64> {
    let mut revoked = 0;
    for message in read_messages(broker, QUEUE).await? {
        let Some(token) = Token::parse(message.clone()) else {
            continue;
        };
        if (token.name() == name || token.id.to_string() == name)
            && remove_message(broker, QUEUE, message).await?
        {
            revoked += 1;
        }
    }
    Ok(revoked)
}

async fn read_tokens(broker: &dyn Broker) -> raddle_broker::Result<Vec<Token>> {
    let messages = read_messages(broker, QUEUE).await?;
    Ok(messages.into_iter().filter_map(Token::parse).collect())
}

/// The messages of one of the queues of this module.
pub(super) async fn read_messages(
    broker: &dyn Broker,
    queue: &str,
) -> raddle_broker::Result<Vec<Message>> {
    broker
        .peek(PeekRequest {
            queue: QueueName::Free(queue.into()),
            after: 0,
            max: MAX_TOKENS,
            wait: Duration::ZERO,
        })
        .await
}

/// Removes a message. Returns whether it was there: of several callers one removes it.
pub(super) async fn remove_message(
    broker: &dyn Broker,
    queue: &str,
    message: Message,
) -> raddle_broker::Result<bool> {
    let transaction = MessageTransaction {
        queue: QueueName::Free(queue.into()),
        messages: vec![message],
        tasks: Vec::new(),
        new_messages: Vec::new(),
    };
    Ok(broker.apply_transaction(transaction).await?.is_some())
}

fn queue() -> QueueName {
    QueueName::Free(QUEUE.into())
}

/// The tokens that the broker knew a moment ago, so that a request costs no read of them.
#[derive(Default)]
pub(crate) struct TokenCache(Mutex<Option<(Instant, Vec<Token>)>>);

impl TokenCache {
    /// The valid token with this text.
    pub(crate) async fn find_by_text(
        &self,
        broker: &dyn Broker,
        text: &str,
    ) -> raddle_broker::Result<Option<Token>> {
        let hash = to_hex(&sha256(text));
        // Hashes: how long the comparison takes says nothing about the token.
        self.find(broker, |token| token.record.sha256 == hash).await
    }

    /// The valid token with this id.
    pub(crate) async fn find_by_id(
        &self,
        broker: &dyn Broker,
        id: Tid,
    ) -> raddle_broker::Result<Option<Token>> {
        self.find(broker, |token| token.id == id).await
    }

    async fn find(
        &self,
        broker: &dyn Broker,
        matches: impl Fn(&Token) -> bool,
    ) -> raddle_broker::Result<Option<Token>> {
        let now = Timestamp::now();
        let known = self
            .fresh()
            .and_then(|tokens| tokens.into_iter().find(&matches));
        let found = match known {
            Some(token) => Some(token),
            // It may have been added since: an unknown token is worth a look.
            None => {
                let tokens = read_tokens(broker).await?;
                let found = tokens.iter().find(|token| matches(token)).cloned();
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((Instant::now(), tokens));
                found
            }
        };
        Ok(found.filter(|token| token.is_valid(now)))
    }

    fn fresh(&self) -> Option<Vec<Token>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (read_at, tokens) = cached.as_ref()?;
        (read_at.elapsed() < FRESH_FOR).then(|| tokens.clone())
    }
}
