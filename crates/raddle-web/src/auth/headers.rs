//! Headers of every response: what a browser may do with it.

use axum::{
    http::{
        HeaderName, HeaderValue,
        header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
    },
    response::Response,
};

/// Own files only, nothing inline, no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'; \
    img-src 'self' data:; style-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

/// Adds the headers. A response that says how long it may be cached keeps that.
pub(crate) async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let fixed = HeaderValue::from_static;
    headers.insert(CONTENT_SECURITY_POLICY, fixed(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
    headers.insert(REFERRER_POLICY, fixed("no-referrer"));
    for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
        headers.insert(HeaderName::from_static(name), fixed("same-origin"));
    }
    if !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, fixed("no-store"));
    }
    response
}
