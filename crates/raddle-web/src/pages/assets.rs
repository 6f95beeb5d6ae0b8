//! The files that pages load: style, scripts and the icon. Their names hold a hash of their
//! content, so browsers may keep them for ever.

use std::sync::LazyLock;

use axum::{
    Router,
    http::{
        HeaderValue,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::IntoResponse,
    routing::get,
};
use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use crate::state::AppState;

/// A file.
pub(crate) struct Asset {
    /// The path, relative to the prefix.
    pub(crate) path: String,
    content: String,
    kind: &'static str,
}

/// All files.
pub(crate) struct Assets {
    pub(crate) style: Asset,
    pub(crate) script: Asset,
    pub(crate) worker: Asset,
    pub(crate) icon: Asset,
}

pub(crate) static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: asset(
        "app",
        "css",
        "text/css; charset=utf-8",
        include_str!("../../assets/app.css"),
    ),
    script: asset(
        "app",
        "js",
        "text/javascript; charset=utf-8",
        include_str!("../../assets/app.js"),
    ),
    worker: asset(
        "live",
        "js",
        "text/javascript; charset=utf-8",
        include_str!("../../assets/live.js"),
    ),
    icon: asset(
        "icon",
        "svg",
        "image/svg+xml",
        include_str!("../../assets/icon.svg"),
    ),
});

fn asset(name: &str, extension: &str, kind: &'static str, source: &str) -> Asset {
    let content = without_comments(source);
    let hash = HEXLOWER.encode(&digest(&SHA256, content.as_bytes()).as_ref()[..5]);
    Asset {
        path: format!("/assets/{name}-{hash}.{extension}"),
        content,
        kind,
    }
}

/// A source without its indentation and its lines of comments, which browsers need not load. No
/// text in our sources spans lines.
fn without_comments(source: &str) -> String {
    let lines = source.lines().map(str::trim);
    let kept = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    kept.flat_map(|line| [line, "\n"]).collect()
}

/// Serves the files, which everyone may read: they hold nothing of the broker.
pub(crate) fn router() -> Router<AppState> {
    let Assets {
        style,
        script,
        worker,
        icon,
    } = &*ASSETS;
    [style, script, worker, icon]
        .into_iter()
        .fold(Router::new(), |router, asset| {
            let answer = move || async move {
                let forever = "public, max-age=31536000, immutable";
                let headers = [(CONTENT_TYPE, asset.kind), (CACHE_CONTROL, forever)]
                    .map(|(name, value)| (name, HeaderValue::from_static(value)));
                (headers, asset.content.as_str()).into_response()
            };
            router.route(&asset.path, get(answer))
        })
}
