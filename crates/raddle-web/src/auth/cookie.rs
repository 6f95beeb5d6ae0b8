//! The cookie of a browser: who it is and until when, signed. It is stored nowhere.

use axum::http::{HeaderMap, header::COOKIE};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use jiff::Timestamp;
use raddle_model::Tid;
use ring::{
    digest::{SHA256, digest},
    hmac,
};

use crate::Options;

/// Whose session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The owner, by a one-time code or by the owner's token.
    Owner,
    /// The holder of a token.
    Token(Tid),
}

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) subject: Subject,
    /// When it ends, in seconds since the epoch.
    pub(crate) ends: i64,
}

/// The name of the cookie. It depends on the secret, so that two instances on one host name, whose
/// cookies no port tells apart, do not overwrite each other's.
pub(crate) fn name(options: &Options) -> String {
    let hash = digest(&SHA256, &options.secret);
    format!("raddle_{}", HEXLOWER.encode(&hash.as_ref()[..4]))
}

/// The `Set-Cookie` header of a new session.
pub(crate) fn start(options: &Options, subject: Subject, now: Timestamp) -> String {
    let seconds = options.session.as_secs();
    let ends = now.as_second() + i64::try_from(seconds).unwrap_or(i64::MAX / 2);
    let value = sign(options, Session { subject, ends });
    header(options, &value, seconds)
}

/// The `Set-Cookie` header that ends a session.
pub(crate) fn end(options: &Options) -> String {
    header(options, "", 0)
}

fn header(options: &Options, value: &str, seconds: u64) -> String {
    let path = if options.prefix.is_empty() {
        "/"
    } else {
        &options.prefix
    };
    let secure = if options.is_secure { "; Secure" } else { "" };
    format!(
        "{}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}",
        name(options)
    )
}

/// The session of a request, if its signature is right and it has not ended.
pub(crate) fn read(options: &Options, headers: &HeaderMap, now: Timestamp) -> Option<Session> {
    let name = name(options);
    let cookies = headers.get_all(COOKIE).into_iter();
    let value = cookies
        .filter_map(|cookies| cookies.to_str().ok())
        .flat_map(|cookies| cookies.split(';'))
        .find_map(|cookie| cookie.trim().strip_prefix(&name)?.strip_prefix('='))?;
    verify(options, value).filter(|session| now.as_second() < session.ends)
}

fn sign(options: &Options, session: Session) -> String {
    let subject = match session.subject {
        Subject::Owner => "owner".to_owned(),
        Subject::Token(id) => id.to_string(),
    };
    let payload = format!("{subject}.{}", session.ends);
    let tag = hmac::sign(&key(options), payload.as_bytes());
    format!("{payload}.{}", BASE64URL_NOPAD.encode(tag.as_ref()))
}

fn verify(options: &Options, value: &str) -> Option<Session> {
    let (payload, tag) = value.rsplit_once('.')?;
    let tag = BASE64URL_NOPAD.decode(tag.as_bytes()).ok()?;
    hmac::verify(&key(options), payload.as_bytes(), &tag).ok()?;
    let (subject, ends) = payload.split_once('.')?;
    Some(Session {
        subject: match subject {
            "owner" => Subject::Owner,
            id => Subject::Token(id.parse().ok()?),
        },
        ends: ends.parse().ok()?,
    })
}

fn key(options: &Options) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &options.secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_what_it_has_signed() {
        let options = Options::default();
        let session = Session {
            subject: Subject::Token("1837025672140161024".parse().unwrap()),
            ends: 2_000_000_000,
        };
        let value = sign(&options, session);
        assert_eq!(verify(&options, &value), Some(session));
        for wrong in [
            value.replace("2000000000", "2000000001"),
            value.replacen("1837025672140161024", "owner", 1),
            value[..value.len() - 1].to_owned(),
            format!("{value}A"),
            "owner.2000000000.".into(),
            String::new(),
            ".".into(),
        ] {
            assert_eq!(verify(&options, &wrong), None, "{wrong}");
        }
        assert_eq!(verify(&Options::default(), &value), None, "another secret");
    }

    #[test]
    fn a_session_ends() {
        let options = Options::default();
        let now = Timestamp::from_second(1_000).unwrap();
        let header = start(&options, Subject::Owner, now);
        let mut headers = HeaderMap::new();
        let pair = header.split_once(';').unwrap().0;
        headers.insert(COOKIE, format!("a=b; {pair}; c=d").parse().unwrap());
        assert!(read(&options, &headers, now).is_some());
        let late = Timestamp::from_second(1_000 + 12 * 3600).unwrap();
        assert!(read(&options, &headers, late).is_none());
    }
}
