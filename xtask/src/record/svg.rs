//! Text in SVG.

/// Colours that are readable on light and on dark pages.
pub(super) const STYLE: &str = "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:14px;white-space:pre}";

/// A text as the content of an element.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
