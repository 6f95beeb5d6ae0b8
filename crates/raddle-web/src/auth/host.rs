//! The host names that requests may name, and where requests come from.
//!
//! A page of another site whose name resolves to this machine (DNS rebinding) is of the same origin
//! as this server for a browser. Only its `Host` gives it away.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{Extensions, HeaderMap, StatusCode, header::HOST},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{Options, problem::Problem, state::AppState};

/// The address of the client; `None` on a Unix socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddress(pub(crate) Option<IpAddr>);

impl PeerAddress {
    pub(crate) fn of_request(extensions: &Extensions) -> Option<IpAddr> {
        match extensions.get::<Self>() {
            Some(Self(address)) => *address,
            None => extensions
                .get::<ConnectInfo<SocketAddr>>()
                .map(|ConnectInfo(address)| address.ip()),
        }
    }
}

/// Refuses requests for other host names.
pub(crate) async fn check_host(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let host = authority(&request);
    match host.filter(|host| is_allowed(&state.options, host)) {
        Some(_) => next.run(request).await,
        None => {
            let name = host.unwrap_or("none");
            Problem::new(
                StatusCode::MISDIRECTED_REQUEST,
                format!("this server does not answer for the host '{name}'"),
            )
            .with_hint(format!(
                "if that name is yours, start it with 'raddle web --allow-host {name}'"
            ))
            .into_response()
        }
    }
}

/// The host and port that a request names. HTTP/2 has them in the URI.
fn authority(request: &Request) -> Option<&str> {
    host_of(request.headers()).or_else(|| {
        let authority = request.uri().authority();
        authority
            .filter(|_| !request.headers().contains_key(HOST))
            .map(|authority| authority.as_str())
    })
}

/// The `Host` header, if there is exactly one.
pub(super) fn host_of(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(HOST).into_iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

/// Whether requests may name this host.
pub(super) fn is_allowed(options: &Options, host: &str) -> bool {
    let Some((name, port)) = split(host) else {
        return false;
    };
    let name = name.to_ascii_lowercase();
    let is_listed = options.allowed_hosts.iter().any(|allowed| {
        allowed == "*"
            || split(&allowed.to_ascii_lowercase()).is_some_and(|(allowed, at)| {
                allowed == name && at.is_none_or(|at| Some(at) == port)
            })
    });
    is_listed || is_loopback(&name) && options.port.is_none_or(|at| port.unwrap_or(80) == at)
}

fn is_loopback(name: &str) -> bool {
    matches!(name, "127.0.0.1" | "[::1]" | "localhost") || name.ends_with(".localhost")
}

/// Splits a host into its name and its port.
pub(super) fn split(host: &str) -> Option<(&str, Option<u16>)> {
    let end = host.find(']').map_or(0, |end| end + 1);
    let (name, port) = match host[end..].find(':') {
        Some(colon) => (
            &host[..end + colon],
            Some(host[end + colon + 1..].parse().ok()?),
        ),
        None => (host, None),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_name)).then_some((name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_loopback_and_the_listed_names() {
        let options = Options {
            port: Some(9460),
            allowed_hosts: vec!["raddle.example".into(), "front.example:8443".into()],
            ..Options::default()
        };
        for host in [
            "127.0.0.1:9460",
            "[::1]:9460",
            "localhost:9460",
            "LOCALHOST:9460",
            "raddle-7.localhost:9460",
            "raddle.example",
            "Raddle.Example:80",
            "front.example:8443",
        ] {
            assert!(is_allowed(&options, host), "{host}");
        }
        for host in [
            "",
            ":",
            ":9460",
            "127.0.0.1",
            "127.0.0.1:9461",
            "evil.test:9460",
            "localhost.evil.test:9460",
            "front.example",
            "raddle.example.evil.test",
            "evil.test@localhost:9460",
            "localhost:9460:9460",
            "[::1]evil:9460",
            "127.0.0.1:x",
            "0.0.0.0:9460",
            "[::]:9460",
        ] {
            assert!(!is_allowed(&options, host), "{host}");
        }
    }
}
