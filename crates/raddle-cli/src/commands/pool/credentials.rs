//! Loads credentials from the files of the flags.

use raddle_tls::{CredentialSource, PemSource, WorkerCredentials};

use crate::{
    args::CredentialsArgs,
    error::{Failure, Outcome},
};

/// Loads the credentials, if any are named.
pub(super) fn load(args: &CredentialsArgs) -> Outcome<Option<WorkerCredentials>> {
    let Some(ca) = &args.credentials_ca else {
        return Ok(None);
    };
    let mut source = CredentialSource::new(PemSource::file(ca))
        .mutual(!args.no_mutual)
        .expecting(args.expect.iter().cloned());
    if let (Some(certificate), Some(key)) = (&args.credentials_cert, &args.credentials_key) {
        source = source.identity(PemSource::file(certificate), PemSource::file(key));
    }
    source
        .load()
        .map(Some)
        .map_err(|error| Failure::Usage(error.to_string()))
}
