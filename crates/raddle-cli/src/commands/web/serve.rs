//! `raddle web`: serves the operator's interface.

use std::net::SocketAddr;

use raddle_broker_remote::bind_socket;
use raddle_web::{
    Acceptor, App, Options, SignIn, WebServer,
    auth::{Role, hash_token},
};
use serde_json::json;
use tokio::net::TcpListener;

use super::files::{self, AddressFile};
use crate::{
    args::WebServeArgs,
    commands::detach,
    context::Context,
    error::{OrFail, Outcome},
    interrupt::Interrupts,
    output,
};

pub(in crate::commands) async fn serve(context: &Context, args: &WebServeArgs) -> Outcome {
    if args.detach && !detach::is_background() {
        let (line, pid) = detach::start_background(context, "web server").await?;
        return context.show(&json!({ "url": line, "pid": pid }), || format!("{line}\n"));
    }
    // First: it creates the directory of the project, if there is none.
    let broker = context.open_for_service().await?;
    let directory = files::directory(context)?;
    let token = files::owner_token(&directory)?;
    let options = Options {
        broker_url: context.project.url.to_string(),
        doctor: Some(context.project.url.clone()),
        prefix: args.prefix.clone(),
        sign_in: SignIn::Tokens {
            owner: Some(hash_token(&token)),
        },
        allowed_hosts: args.allow_hosts.clone(),
        is_read_only: args.read_only,
        has_open_metrics: args.open_metrics,
        // Another token ends all sessions.
        secret: hash_token(&format!("cookies of {token}")),
        ..Options::default()
    };
    let mut interrupts = Interrupts::install()?;
    let (server, options, url, _socket) = match &args.socket {
        Some(path) => {
            let (listener, socket) = bind_socket(path).await?;
            let listener =
                tokio::net::UnixListener::from_std(listener).or_raddle_at("cannot listen")?;
            let options = Options {
                sign_in: SignIn::Trusted(Role::Owner),
                ..options
            };
            let server = WebServer::unix(listener, rustix::process::geteuid().as_raw());
            (
                server,
                options,
                format!("unix:{}", path.display()),
                Some(socket),
            )
        }
        None => {
            let (server, options, url) = bind_address(args, options).await?;
            (server, options, url, None)
        }
    };
    let _address = AddressFile::write(&directory, &url)?;
    let app = App::new(broker, options);
    if detach::is_background() {
        detach::redirect_to_log(&files::log(context)?, &url)?;
    } else if context.json {
        output::print_json(&json!({ "url": url, "pid": std::process::id() }))?;
    } else {
        output::print_line(&url)?;
        if args.socket.is_none() {
            context.note("sign in with 'raddle web open'");
        }
    }
    server.run(app, interrupts.next()).await;
    Ok(0)
}

/// Binds the address. One beyond loopback needs TLS or `--public`.
async fn bind_address(
    args: &WebServeArgs,
    options: Options,
) -> Outcome<(WebServer, Options, String)> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(Acceptor::from_files(certificate, key).or_usage()?),
        _ => None,
    };
    let address: SocketAddr = args
        .addr
        .allowed_for_web(args.public || tls.is_some())
        .or_usage()?;
    let listener = TcpListener::bind(address).await;
    let listener = listener.or_usage_at(format_args!(
        "cannot listen on {address}, choose another with --addr"
    ))?;
    let bound = listener.local_addr().or_raddle_at("cannot listen")?;
    let mut allowed_hosts = options.allowed_hosts.clone();
    if !bound.ip().is_unspecified() {
        allowed_hosts.push(bound.to_string());
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    let shown = match bound.ip().is_unspecified() {
        true => SocketAddr::from(([127, 0, 0, 1], bound.port())),
        false => bound,
    };
    let url = format!("{scheme}://{shown}{}/", options.prefix);
    let options = Options {
        port: Some(bound.port()),
        is_secure: tls.is_some(),
        allowed_hosts,
        ..options
    };
    Ok((WebServer::tcp(listener, tls), options, url))
}
