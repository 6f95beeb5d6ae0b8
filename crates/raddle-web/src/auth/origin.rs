//! Whether the page that sends a request is one of ours.
//!
//! A browser adds our cookie to forms of other pages, and cookies know no ports: a page of another
//! server on this machine is of the same site. So the origin must be the same. Browsers do not send
//! `Sec-Fetch-Site` over plain HTTP to names other than loopback; there `Origin` decides.

use axum::http::{HeaderMap, StatusCode, header::ORIGIN};

use super::host::{host_of, split};
use crate::{
    Options,
    problem::{Problem, Result},
};

/// Checks a request that changes something. `is_strict` refuses requests that name no origin at
/// all: browsers always name one, and programs send a token instead of a cookie.
pub(super) fn check_origin(options: &Options, headers: &HeaderMap, is_strict: bool) -> Result<()> {
    let one = |name| {
        let mut values = headers.get_all(name).into_iter();
        let first = values.next();
        // A second value makes the first one worthless.
        first.map(|value| {
            values
                .next()
                .map_or(value.to_str().ok(), |_| None)
                .unwrap_or("")
        })
    };
    let is_ours = match (one("sec-fetch-site"), one(ORIGIN.as_str())) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => is_own_origin(options, headers, origin),
        (None, None) => !is_strict,
    };
    if is_ours {
        return Ok(());
    }
    let why = "the request does not come from a page of this server";
    Err(Problem::new(StatusCode::FORBIDDEN, why)
        .with_hint("programs send a token: 'Authorization: Bearer TOKEN'"))
}

fn is_own_origin(options: &Options, headers: &HeaderMap, origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false;
    };
    let default = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |authority: &str| {
        let authority = authority.to_ascii_lowercase();
        authority
            .strip_suffix(default)
            .map(str::to_owned)
            .unwrap_or(authority)
    };
    let host = host_of(headers);
    let is_host = host.is_some_and(|host| bare(host) == bare(authority));
    let name = |authority: &str| split(authority).map(|(name, _)| name.to_ascii_lowercase());
    // A proxy may put its own address into `Host`; the browser sees the listed name. Cookies know
    // no ports: where the names are the same, only a port that is listed is ours.
    let is_same_name = host.is_some_and(|host| name(host) == name(authority));
    let is_listed = options.allowed_hosts.iter().any(|allowed| {
        let has_port = split(allowed).is_some_and(|(_, port)| port.is_some());
        bare(allowed) == bare(authority) && (!is_same_name || has_port)
    });
    is_host || is_listed
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn is_refused(headers: &[(&'static str, &'static str)]) -> bool {
        let options = Options {
            allowed_hosts: vec!["front.example".into()],
            ..Options::default()
        };
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect();
        check_origin(&options, &headers, true).is_err()
    }

    #[test]
    fn only_pages_of_this_server_change_something() {
        let host = ("host", "127.0.0.1:9460");
        for ours in [
            ("sec-fetch-site", "same-origin"),
            ("origin", "http://127.0.0.1:9460"),
            ("origin", "https://front.example"),
        ] {
            assert!(!is_refused(&[host, ours]), "{ours:?}");
        }
        for other in [
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "none"),
            ("sec-fetch-site", ""),
            ("origin", "http://127.0.0.1:9461"),
            ("origin", "http://localhost:9460"),
            ("origin", "null"),
            ("origin", ""),
            ("origin", "http://evil.test"),
            ("referer", "http://127.0.0.1:9460/"),
        ] {
            assert!(is_refused(&[host, other]), "{other:?}");
        }
        let own = ("origin", "http://127.0.0.1:9460");
        assert!(is_refused(&[host, own, ("sec-fetch-site", "same-site")]));
        assert!(is_refused(&[host]));
    }

    /// Cookies know no ports: a page of another server of the listed name would bring ours.
    #[test]
    fn another_port_of_a_listed_name_is_another_server() {
        let host = ("host", "front.example:9460");
        assert!(!is_refused(&[
            host,
            ("origin", "http://front.example:9460")
        ]));
        assert!(is_refused(&[host, ("origin", "http://front.example:8080")]));
        assert!(is_refused(&[host, ("origin", "http://front.example")]));
    }
}
