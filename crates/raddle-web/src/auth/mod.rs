//! Who asks, what they may do, and the checks in front of every route.
//!
//! The order of the checks is the same for all methods: host name (`host.rs`), sign-in
//! (`caller.rs`), origin of requests that change something (`origin.rs`), type of the body, right
//! (`gate.rs`). What is refused is in the audit trail, too.

mod caller;
mod code;
mod cookie;
mod gate;
mod headers;
mod host;
mod login;
mod origin;
mod right;
mod throttle;
mod token;

pub use code::{CODE_LIFETIME, create_code};
pub use right::{Right, Rights, Role, UnknownRight, UnknownRole};
pub use token::{NewToken, Token, add_token, hash_token, list_tokens, new_token, revoke_token};

pub(crate) use caller::{Caller, Credential};
pub(crate) use gate::gate;
pub(crate) use headers::add_headers;
pub(crate) use host::{PeerAddress, check_host};
pub(crate) use login::ROUTES;
pub(crate) use throttle::Throttle;
pub(crate) use token::TokenCache;

use data_encoding::HEXLOWER;
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};

/// Random bytes.
pub(crate) fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the kernel has random bytes");
    bytes
}

/// The SHA-256 of a text.
fn sha256(text: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    hash
}

/// The SHA-256 of a text, in hexadecimal.
#[cfg(test)]
pub(crate) fn hash_hex(text: &str) -> String {
    to_hex(&sha256(text))
}

fn to_hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}
