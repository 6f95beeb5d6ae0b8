//! `raddle web open`: a link that signs a browser in once.

use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal},
    process::{Command, Stdio},
};

use raddle_model::{TaskQuery, tid::TidArg};
use raddle_web::auth::{CODE_LIFETIME, create_code};
use serde_json::json;

use super::files::{self, AddressFile};
use crate::{
    context::Context,
    error::{Failure, OrFail, Outcome},
    tid,
};

pub(super) async fn open(context: &Context, what: Option<String>, url: Option<String>) -> Outcome {
    let base = match url {
        Some(url) => url,
        None => AddressFile::read(&files::directory(context)?)?.ok_or_else(|| {
            Failure::Usage(
                "no server of this project runs: start it with 'raddle web', or name it with --url"
                    .into(),
            )
        })?,
    };
    if base.starts_with("unix:") {
        return Err(Failure::Usage(format!(
            "the server listens at {base}, where nobody signs in: forward it with 'ssh -L 9460:PATH HOST', and open http://localhost:9460"
        )));
    }
    let broker = context.open_existing().await?;
    let to = match what {
        None => "/".to_owned(),
        Some(text) => match text.parse::<TidArg>() {
            Ok(arg) => format!("/tasks/{}", tid::resolve(&*broker, arg).await?),
            Err(_) => {
                let query: TaskQuery = text.parse().or_usage()?;
                format!("/tasks?q={}", encode(&query.to_string()))
            }
        },
    };
    let code = create_code(&*broker).await?;
    let base = base.trim_end_matches('/');
    let link = format!("{base}/login?code={code}&to={}", encode(&to));
    if io::stdout().is_terminal() {
        show_in_browser(&link);
    }
    let record = json!({ "url": link, "expires_in_seconds": CODE_LIFETIME.as_secs() });
    context.show(&record, || format!("{link}\n"))
}

/// Opens a link, where there is a desktop. It is printed anyway.
fn show_in_browser(link: &str) {
    if ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .all(|name| env::var_os(name).is_none())
    {
        return;
    }
    let mut command = Command::new("xdg-open");
    command
        .arg(link)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Without the program the printed link is enough.
    let _ = command.spawn();
}

fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into());
            }
            _ => write!(out, "%{byte:02X}").expect("a string takes any text"),
        }
        out
    })
}
