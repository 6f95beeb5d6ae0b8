//! The head of a request, read as strictly as it takes to answer one question. Pure.

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// A page, and whether without its body.
    Get { path: &'a str, head_only: bool },
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is no request.
    Malformed,
    /// It wants to change something.
    Method,
    /// It is in a version that is not spoken here.
    Version,
}

/// The longest head that is read. What asks for metrics sends a few hundred bytes.
pub(crate) const MAX_HEAD: usize = 8 << 10;

/// Where the head ends, if all of it is there.
pub(crate) fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let crlf = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
    let lf = bytes.windows(2).position(|window| window == b"\n\n").map(|at| at + 2);
    crlf.into_iter().chain(lf).min()
}

/// What a head asks for.
pub(crate) fn parse(head: &[u8]) -> Result<Request<'_>, Refusal> {
    let head = std::str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    let line = head.lines().next().ok_or(Refusal::Malformed)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    let is_token = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if !is_token(method) || !is_token(target) || !target.starts_with('/') {
        return Err(Refusal::Malformed);
    }
    match version {
        "HTTP/1.0" | "HTTP/1.1" => {}
        _ if version.starts_with("HTTP/") => return Err(Refusal::Version),
        _ => return Err(Refusal::Malformed),
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    match method {
        "GET" => Ok(Request::Get { path, head_only: false }),
        "HEAD" => Ok(Request::Get { path, head_only: true }),
        _ => Err(Refusal::Method),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_is_understood_and_the_rest_is_refused() {
        let get = |path, head_only| Ok(Request::Get { path, head_only });
        for (head, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", get("/metrics", false)),
            ("GET /metrics?x=1 HTTP/1.0\n\n", get("/metrics", false)),
            ("HEAD / HTTP/1.1\r\n\r\n", get("/", true)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Err(Refusal::Method)),
            ("GET /metrics HTTP/2.0\r\n\r\n", Err(Refusal::Version)),
            ("GET /metrics\r\n\r\n", Err(Refusal::Malformed)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Err(Refusal::Malformed)),
            ("GET metrics HTTP/1.1\r\n\r\n", Err(Refusal::Malformed)),
            ("GET /a\tb HTTP/1.1\r\n\r\n", Err(Refusal::Malformed)),
            ("\r\n\r\n", Err(Refusal::Malformed)),
            ("", Err(Refusal::Malformed)),
        ] {
            assert_eq!(parse(head.as_bytes()), expected, "{head:?}");
        }
        assert_eq!(parse(b"GET /\xff HTTP/1.1\r\n\r\n"), Err(Refusal::Malformed));
    }

    #[test]
    fn the_end_of_a_head_is_found() {
        assert_eq!(end_of_head(b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest"), Some(24));
        assert_eq!(end_of_head(b"GET / HTTP/1.1\n\n\r\n\r\n"), Some(16));
        assert_eq!(end_of_head(b"GET / HTTP/1.1\r\n"), None);
    }
}
