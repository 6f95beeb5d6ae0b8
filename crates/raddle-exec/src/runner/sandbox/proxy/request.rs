//! What a program asks a proxy for: the head of an HTTP request. It is written by code that nobody trusts.

use raddle_core::spec::network::Place;

/// The port of an address that names none.
const HTTP: u16 = 80;
/// What such an address begins with.
const SCHEME: &str = "http://";
/// Headers that are between a program and its proxy, and those that are said anew.
const OWN: [&str; 6] = ["connection", "keep-alive", "host", "te", "trailer", "upgrade"];

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A way to a place, for whatever is said there.
    Tunnel(Place),
    /// One request to a place, with the head that is to be sent there.
    Forward(Place, String),
}

/// Reads a head, which ends with an empty line. The error says what is wrong with it.
pub(super) fn parse(head: &str) -> Result<Wanted, &'static str> {
    let mut lines = head.strip_suffix("\r\n\r\n").ok_or("it has no end")?.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("its first line is none of HTTP");
    };
    if !is_token(method) || !version.starts_with("HTTP/1.") || target.bytes().any(|b| !b.is_ascii_graphic()) {
        return Err("its first line is none of HTTP");
    }
    if method == "CONNECT" {
        return target.parse().map(Wanted::Tunnel).map_err(|_| "its target is no HOST:PORT");
    }
    let (place, path) = split(target)?;
    let mut out = format!("{method} {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n");
    for line in lines {
        let (name, _) = line.split_once(':').filter(|(name, _)| is_token(name)).ok_or("one of its headers is none")?;
        if line.bytes().any(|b| b < b' ' && b != b'\t') {
            return Err("one of its headers has a control character");
        }
        let name = name.to_ascii_lowercase();
        if !name.starts_with("proxy-") && !OWN.contains(&name.as_str()) {
            out.push_str(line);
            out.push_str("\r\n");
        }
    }
    out.push_str("\r\n");
    Ok(Wanted::Forward(place, out))
}

/// The place that an address names, and the path there.
fn split(target: &str) -> Result<(Place, String), &'static str> {
    let scheme = target.get(..SCHEME.len()).filter(|scheme| scheme.eq_ignore_ascii_case(SCHEME));
    let rest = scheme.map(|scheme| &target[scheme.len()..]).ok_or("its target is no http:// address")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let place = if has_port { authority.parse() } else { Place::new(authority, HTTP) };
    let place = place.map_err(|_| "its target names no host")?;
    let path = path.split('#').next().unwrap_or_default();
    Ok((place, if path.starts_with('/') { path.into() } else { format!("/{path}") }))
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(text: &str) -> Place {
        text.parse().unwrap()
    }

    #[test]
    fn a_tunnel_is_to_a_place() {
        let wanted = parse("CONNECT Example.org:443 HTTP/1.1\r\nHost: other\r\n\r\n");
        assert_eq!(wanted, Ok(Wanted::Tunnel(place("example.org:443"))));
        assert_eq!(parse("CONNECT [::1]:80 HTTP/1.0\r\n\r\n"), Ok(Wanted::Tunnel(place("[::1]:80"))));
    }

    #[test]
    fn a_request_is_said_to_whom_it_is_sent() {
        let head = "GET http://example.org/a?b HTTP/1.1\r\nHost: inside\r\nAccept: */*\r\nProxy-Connection: x\r\nCONNECTION: y\r\n\r\n";
        let sent = "GET /a?b HTTP/1.1\r\nHost: example.org:80\r\nConnection: close\r\nAccept: */*\r\n\r\n";
        assert_eq!(parse(head), Ok(Wanted::Forward(place("example.org:80"), sent.into())));
        for (target, to, path) in [
            ("http://a", "a:80", "/"),
            ("HTTP://a:8080/", "a:8080", "/"),
            ("http://a?q", "a:80", "/?q"),
            ("http://[::1]/x#y", "[::1]:80", "/x"),
            ("http://[::1]:81/x", "[::1]:81", "/x"),
        ] {
            let Ok(Wanted::Forward(place, head)) = parse(&format!("GET {target} HTTP/1.1\r\n\r\n")) else {
                panic!("{target}")
            };
            assert_eq!((place.to_string().as_str(), head.split(' ').nth(1)), (to, Some(path)), "{target}");
        }
    }

    #[test]
    fn what_is_not_meant_for_a_proxy_is_refused() {
        for head in [
            "",
            "\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\n",
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
            "GET http://a/ HTTP/1.1\r\nA: b\nHost: c\r\n\r\n",
            "GET http://a/\tb HTTP/1.1\r\n\r\n",
            "CONNECT example.org HTTP/1.1\r\n\r\n",
            "CONNECT http://example.org:443 HTTP/1.1\r\n\r\n",
        ] {
            assert!(parse(head).is_err(), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn no_head_makes_the_reader_panic(head in "(GET|CONNECT) (http://)?\\PC{0,20} HTTP/1.1\r\n(\\PC{0,10}\r\n){0,3}\r\n|\\PC*") {
            let _ = parse(&head);
        }
    }
}
