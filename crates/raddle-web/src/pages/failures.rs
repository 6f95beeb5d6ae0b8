//! Failures by cause: what failed in the same way, since when, and how often.

use super::{context::Context, model::Page};
use crate::problem::Result;

pub(super) async fn show(_cx: &Context) -> Result<Page> {
    Ok(Page::default())
}
