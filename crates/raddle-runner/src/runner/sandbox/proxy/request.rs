//! Parses the head of an HTTP request to the proxy. Untrusted code writes it, so the forwarded head
//! is built anew from the parts that `httparse` has read.

use httparse::Status;
use raddle_model::spec::network::NetworkEndpoint;

/// Default port of an `http://` URL.
const DEFAULT_PORT: u16 = 80;
/// The only supported scheme.
const SCHEME: &str = "http://";
/// Maximum number of headers.
const MAX_HEADERS: usize = 100;
/// Hop-by-hop headers, and headers that the proxy writes itself.
const HOP_BY_HOP: [&str; 6] = [
    "connection",
    "keep-alive",
    "host",
    "te",
    "trailer",
    "upgrade",
];

/// A request to the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProxyRequest {
    /// CONNECT: a tunnel to an endpoint.
    Tunnel(NetworkEndpoint),
    /// One request to an endpoint, with the head to send there.
    Forward(NetworkEndpoint, Vec<u8>),
}

/// Parses a head and returns its length with it. `None` if the head is incomplete.
pub(super) fn parse(received: &[u8]) -> Result<Option<(ProxyRequest, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(received).map_err(|error| error.to_string())? {
        Status::Complete(length) => length,
        Status::Partial => return Ok(None),
    };
    let (method, target) = (
        request.method.unwrap_or_default(),
        request.path.unwrap_or_default(),
    );
    if method == "CONNECT" {
        let endpoint = target.parse().map_err(|_| "its target is not HOST:PORT")?;
        return Ok(Some((ProxyRequest::Tunnel(endpoint), length)));
    }
    let (endpoint, path) = split_url(target)?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n")
        .into_bytes();
    for header in request.headers {
        let name = header.name.to_ascii_lowercase();
        if !name.starts_with("proxy-") && !HOP_BY_HOP.contains(&name.as_str()) {
            head.extend([header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
        }
    }
    head.extend(b"\r\n");
    Ok(Some((ProxyRequest::Forward(endpoint, head), length)))
}

/// Splits a URL into the endpoint and the path.
fn split_url(target: &str) -> Result<(NetworkEndpoint, String), &'static str> {
    let scheme = target
        .get(..SCHEME.len())
        .filter(|scheme| scheme.eq_ignore_ascii_case(SCHEME));
    let rest = scheme
        .map(|scheme| &target[scheme.len()..])
        .ok_or("its target is not an http:// URL")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.ends_with(']'));
    let endpoint = if has_port {
        authority.parse()
    } else {
        NetworkEndpoint::new(authority, DEFAULT_PORT)
    };
    let endpoint = endpoint.map_err(|_| "its target names no host")?;
    let path = path.split('#').next().unwrap_or_default();
    Ok((
        endpoint,
        if path.starts_with('/') {
            path.into()
        } else {
            format!("/{path}")
        },
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint(text: &str) -> NetworkEndpoint {
        text.parse().unwrap()
    }

    fn parse_with_body(head: &str) -> Result<Option<ProxyRequest>, String> {
        let body = "GET / HTTP/1.1\r\n\r\n";
        let parsed = parse(format!("{head}{body}").as_bytes())?;
        Ok(parsed.map(|(request, length)| {
            assert_eq!(length, head.len(), "the body is no part of {head:?}");
            request
        }))
    }

    #[test]
    fn parses_a_tunnel_request() {
        let request = parse_with_body("CONNECT Example.org:443 HTTP/1.1\r\nHost: other\r\n\r\n");
        assert_eq!(
            request,
            Ok(Some(ProxyRequest::Tunnel(endpoint("example.org:443"))))
        );
        assert_eq!(
            parse_with_body("CONNECT [::1]:80 HTTP/1.0\r\n\r\n"),
            Ok(Some(ProxyRequest::Tunnel(endpoint("[::1]:80"))))
        );
    }

    #[test]
    fn rewrites_the_head_of_a_forwarded_request() {
        let head = "GET http://example.org/a?b HTTP/1.1\r\nHost: inside\r\nAccept: */*\r\nProxy-Connection: x\r\nCONNECTION: y\nHOST: z\r\n\r\n";
        let sent =
            "GET /a?b HTTP/1.1\r\nHost: example.org:80\r\nConnection: close\r\nAccept: */*\r\n\r\n";
        assert_eq!(
            parse_with_body(head),
            Ok(Some(ProxyRequest::Forward(
                endpoint("example.org:80"),
                sent.into()
            )))
        );
        for (target, to, path) in [
            ("http://a", "a:80", "/"),
            ("HTTP://a:8080/", "a:8080", "/"),
            ("http://a?q", "a:80", "/?q"),
            ("http://[::1]/x#y", "[::1]:80", "/x"),
            ("http://[::1]:81/x", "[::1]:81", "/x"),
        ] {
            let Ok(Some(ProxyRequest::Forward(endpoint, head))) =
                parse_with_body(&format!("GET {target} HTTP/1.1\r\n\r\n"))
            else {
                panic!("{target}")
            };
            let head = String::from_utf8(head).unwrap();
            assert_eq!(
                (endpoint.to_string().as_str(), head.split(' ').nth(1)),
                (to, Some(path)),
                "{target}"
            );
        }
    }

    #[test]
    fn rejects_invalid_heads() {
        for head in [
            "\0\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET https://a/ HTTP/1.1\r\n\r\n",
            "GET http://user@a/ HTTP/1.1\r\n\r\n",
            "GET http://a@b:80/ HTTP/1.1\r\n\r\n",
            "GET http:///x HTTP/1.1\r\n\r\n",
            "GET http://a:/ HTTP/1.1\r\n\r\n",
            "GET  http://a/ HTTP/1.1\r\n\r\n",
            "GET http://a/ HTTP/2\r\n\r\n",
            "G(T http://a/ HTTP/1.1\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nno header\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nA: b\rHost: c\r\n\r\n",
            "GET http://a/\tb HTTP/1.1\r\n\r\n",
            "CONNECT example.org HTTP/1.1\r\n\r\n",
            "CONNECT http://example.org:443 HTTP/1.1\r\n\r\n",
        ] {
            assert!(parse(head.as_bytes()).is_err(), "{head:?}");
        }
        for unfinished in ["", "\r\n\r\n", "GET http://a/ HTTP/1.1\r\n"] {
            assert_eq!(parse(unfinished.as_bytes()), Ok(None), "{unfinished:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_any_head(head in "(GET|CONNECT) (http://)?\\PC{0,20} HTTP/1.1\r\n(\\PC{0,10}\r\n){0,3}\r\n|\\PC*") {
            let _ = parse(head.as_bytes());
        }
    }
}
