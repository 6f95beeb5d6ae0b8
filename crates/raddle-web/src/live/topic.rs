//! A screen that someone looks at, and what its viewers have been sent.

use std::collections::HashMap;

use serde_json::json;

use super::fragments::{Fragment, changed, is_one_gone, of_page};
use crate::{
    auth::Caller,
    pages::{self, context::Context},
    problem::Result,
    state::AppState,
};

/// Identifies a topic: the screen and the rights of those who look at it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TopicKey {
    /// Path and query string, relative to the prefix.
    pub(super) screen: String,
    /// The name of the caller, and what they may do.
    pub(super) viewer: String,
}

/// A topic.
pub(super) struct Topic {
    pub(super) caller: Caller,
    /// The last rendering; `None` before the first.
    last: Option<Vec<Fragment>>,
    /// The sessions that look at it.
    pub(super) viewers: Vec<u64>,
}

/// An event of the stream: its name and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiveFrame {
    pub(super) event: &'static str,
    pub(super) data: String,
}

impl Topic {
    pub(super) fn new(caller: Caller) -> Self {
        Self {
            caller,
            last: None,
            viewers: Vec::new(),
        }
    }

    /// Forgets what was sent, so that the next rendering is sent whole: a new viewer may have a
    /// page from before.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// The frames that lead from the last rendering to this one.
    pub(super) fn advance(&mut self, screen: &str, rendered: Rendered) -> Vec<LiveFrame> {
        let Rendered { fragments, newer } = rendered;
        let old = self.last.take().unwrap_or_default();
        let mut frames: Vec<LiveFrame> = changed(&old, &fragments)
            .into_iter()
            .map(|fragment| LiveFrame {
                event: "patch",
                data: json!({ "topic": screen, "id": fragment.id, "html": fragment.html })
                    .to_string(),
            })
            .collect();
        if is_one_gone(&old, &fragments) {
            frames.push(LiveFrame {
                event: "resync",
                data: json!({ "topic": screen }).to_string(),
            });
        }
        frames.extend(newer.map(|count| LiveFrame {
            event: "newer",
            data: json!({ "topic": screen, "count": count }).to_string(),
        }));
        self.last = Some(fragments);
        frames
    }
}

/// A screen as it is now.
pub(super) struct Rendered {
    fragments: Vec<Fragment>,
    /// How many tasks of a list are newer than those on the screen.
    newer: Option<usize>,
}

/// Renders a screen.
pub(super) async fn render(state: &AppState, caller: &Caller, screen: &str) -> Result<Rendered> {
    let cx = Context::new(state.clone(), caller.clone(), screen)?;
    let page = pages::screen(&cx).await?;
    let newer = pages::count_newer(&cx).await?;
    let mut fragments = of_page(&page);
    fragments.extend(
        pages::navigation_counts(&cx)
            .await?
            .into_iter()
            .map(|(id, html)| Fragment::new(id, html)),
    );
    Ok(Rendered { fragments, newer })
}

/// The topics by key.
pub(super) type Topics = HashMap<TopicKey, Topic>;
