//! The head of an HTTP request to the proxy. It is written by untrusted code, so what is sent on is made anew of the parts that `httparse` has read.

use httparse::Status;
use raddle_model::spec::network::NetworkEndpoint;

/// The port of an address that names none.
const HTTP: u16 = 80;
/// What such an address begins with.
const SCHEME: &str = "http://";
/// As many headers as a request can have.
const HEADERS: usize = 100;
/// Headers that are between a program and its proxy, and those that are said anew.
const OWN: [&str; 6] = [
    "connection",
    "keep-alive",
    "host",
    "te",
    "trailer",
    "upgrade",
];

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProxyRequest {
    /// A way to a place, for whatever is said there.
    Tunnel(NetworkEndpoint),
    /// One request to a place, with the head that is to be sent there.
    Forward(NetworkEndpoint, Vec<u8>),
}

/// Reads a head, and returns with it how long it is. Nothing, if its end has not been received yet.
pub(super) fn parse(received: &[u8]) -> Result<Option<(ProxyRequest, usize)>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
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
        let place = target.parse().map_err(|_| "its target is no HOST:PORT")?;
        return Ok(Some((ProxyRequest::Tunnel(place), length)));
    }
    let (place, path) = split(target)?;
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n").into_bytes();
    for header in request.headers {
        let name = header.name.to_ascii_lowercase();
        if !name.starts_with("proxy-") && !OWN.contains(&name.as_str()) {
            head.extend([header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
        }
    }
    head.extend(b"\r\n");
    Ok(Some((ProxyRequest::Forward(place, head), length)))
}

/// The place that an address names, and the path there.
fn split(target: &str) -> Result<(NetworkEndpoint, String), &'static str> {
    let scheme = target
        .get(..SCHEME.len())
        .filter(|scheme| scheme.eq_ignore_ascii_case(SCHEME));
    let rest = scheme
        .map(|scheme| &target[scheme.len()..])
        .ok_or("its target is no http:// address")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.ends_with(']'));
    let place = if has_port {
        authority.parse()
    } else {
        NetworkEndpoint::new(authority, HTTP)
    };
    let place = place.map_err(|_| "its target names no host")?;
    let path = path.split('#').next().unwrap_or_default();
    Ok((
        place,
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

    fn place(text: &str) -> NetworkEndpoint {
        text.parse().unwrap()
    }

    fn read(head: &str) -> Result<Option<ProxyRequest>, String> {
        let body = "GET / HTTP/1.1\r\n\r\n";
        let parsed = parse(format!("{head}{body}").as_bytes())?;
        Ok(parsed.map(|(wanted, length)| {
            assert_eq!(length, head.len(), "the body is no part of {head:?}");
            wanted
        }))
    }

    #[test]
    fn a_tunnel_is_to_a_place() {
        let wanted = read("CONNECT Example.org:443 HTTP/1.1\r\nHost: other\r\n\r\n");
        assert_eq!(
            wanted,
            Ok(Some(ProxyRequest::Tunnel(place("example.org:443"))))
        );
        assert_eq!(
            read("CONNECT [::1]:80 HTTP/1.0\r\n\r\n"),
            Ok(Some(ProxyRequest::Tunnel(place("[::1]:80"))))
        );
    }

    #[test]
    fn a_request_is_said_to_whom_it_is_sent() {
        let head = "GET http://example.org/a?b HTTP/1.1\r\nHost: inside\r\nAccept: */*\r\nProxy-Connection: x\r\nCONNECTION: y\nHOST: z\r\n\r\n";
        let sent =
            "GET /a?b HTTP/1.1\r\nHost: example.org:80\r\nConnection: close\r\nAccept: */*\r\n\r\n";
        assert_eq!(
            read(head),
            Ok(Some(ProxyRequest::Forward(
                place("example.org:80"),
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
            let Ok(Some(ProxyRequest::Forward(place, head))) =
                read(&format!("GET {target} HTTP/1.1\r\n\r\n"))
            else {
                panic!("{target}")
            };
            let head = String::from_utf8(head).unwrap();
            assert_eq!(
                (place.to_string().as_str(), head.split(' ').nth(1)),
                (to, Some(path)),
                "{target}"
            );
        }
    }

    #[test]
    fn what_is_not_meant_for_a_proxy_is_refused() {
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
        fn no_head_makes_the_reader_panic(head in "(GET|CONNECT) (http://)?\\PC{0,20} HTTP/1.1\r\n(\\PC{0,10}\r\n){0,3}\r\n|\\PC*") {
            let _ = parse(head.as_bytes());
        }
    }
}
