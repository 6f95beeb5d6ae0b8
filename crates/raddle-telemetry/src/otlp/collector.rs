//! The collector's address and protocol: from the flag, else from `OTEL_EXPORTER_OTLP_*`.

use std::{io, time::Duration};

use hyper::Uri;
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};

use super::tls;

/// A text that is no collector address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "that is not a collector's address: give one like http://127.0.0.1:4318 or https://collector:4318, and credentials in OTEL_EXPORTER_OTLP_HEADERS"
)]
pub struct EndpointError;

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// The protocol is not supported.
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL is '{0}': use grpc or http/protobuf")]
    Protocol(String),
    /// A file cannot be read.
    #[error("cannot read '{path}' of {variable}: {source}")]
    File {
        /// The variable that names the file.
        variable: String,
        /// The file.
        path: String,
        /// The error of the read.
        source: io::Error,
    },
    /// The certificates are invalid.
    #[error("the certificates of OTEL_EXPORTER_OTLP_* cannot be used: {0}")]
    Certificates(String),
    /// Another setting is invalid.
    #[error(transparent)]
    Build(#[from] ExporterBuildError),
}

/// The path for spans over HTTP.
const PATH: &str = "/v1/traces";
/// OpenTelemetry's default timeout of an export.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads an OpenTelemetry variable. The one for traces wins.
pub(super) fn read_setting(name: &str) -> Option<(String, String)> {
    let names = [
        format!("OTEL_EXPORTER_OTLP_TRACES_{name}"),
        format!("OTEL_EXPORTER_OTLP_{name}"),
    ];
    let found = |name: String| {
        std::env::var(&name)
            .ok()
            .filter(|value| !value.is_empty())
            .map(|value| (name, value))
    };
    names.into_iter().find_map(found)
}

/// Whether the environment names a collector.
pub fn is_configured() -> bool {
    read_setting("ENDPOINT").is_some()
}

/// Makes the exporter, inside a runtime. It connects at the first export.
pub(super) fn build_exporter(endpoint: Option<&str>) -> Result<(SpanExporter, String), SetUpError> {
    let protocol = match read_setting("PROTOCOL") {
        None => Protocol::HttpBinary,
        Some((_, name)) if name == "http/protobuf" => Protocol::HttpBinary,
        Some((_, name)) if name == "grpc" => Protocol::Grpc,
        Some((_, other)) => return Err(SetUpError::Protocol(other)),
    };
    let (variable, address) = match endpoint {
        Some(address) => (String::new(), address.to_owned()),
        None => read_setting("ENDPOINT").unwrap_or_default(),
    };
    let milliseconds = read_setting("TIMEOUT").and_then(|(_, value)| value.parse().ok());
    let timeout = milliseconds.map_or(TIMEOUT, Duration::from_millis);
    let is_plain = address.starts_with("http://");
    if matches!(protocol, Protocol::Grpc) {
        let mut builder = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&address)
            .with_timeout(timeout);
        if !is_plain {
            builder = builder.with_tls_config(tls::tonic_config()?);
        }
        return Ok((builder.build()?, address));
    }
    // The variable for traces contains the full URL.
    let is_whole = variable.contains("_TRACES_") || endpoint.is_some() && has_path(&address);
    let address = if is_whole {
        address
    } else {
        format!("{}{PATH}", address.trim_end_matches('/'))
    };
    let tls = if is_plain {
        tls::plain_config()
    } else {
        tls::rustls_config()?
    };
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .build();
    let builder = SpanExporter::builder()
        .with_http()
        .with_protocol(protocol)
        .with_endpoint(&address)
        .with_timeout(timeout)
        .with_http_client(HyperClient::new(connector, timeout, None));
    Ok((builder.build()?, address))
}

fn has_path(address: &str) -> bool {
    address.parse::<Uri>().is_ok_and(|uri| uri.path() != "/")
}

/// Parses the URL of a collector. It may not contain a user, so that no password gets into errors
/// and logs.
pub fn parse_endpoint(text: &str) -> Result<String, EndpointError> {
    let uri: Uri = text.parse().map_err(|_| EndpointError)?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_user = uri
        .authority()
        .is_none_or(|authority| authority.as_str().contains('@'));
    if is_http && !has_user {
        Ok(text.to_owned())
    } else {
        Err(EndpointError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_urls_without_credentials() {
        for text in [
            "http://127.0.0.1:4318",
            "https://collector.example",
            "http://[::1]:9/x/v1/traces",
        ] {
            assert_eq!(parse_endpoint(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "127.0.0.1:4318",
            "grpc://127.0.0.1",
            "http://127.0.0.1/a b",
            "https://u:secret@127.0.0.1",
        ] {
            assert_eq!(parse_endpoint(text), Err(EndpointError), "{text}");
        }
    }
}
