//! Credentials, as flags name them.

use raddle_tls::{CredentialSource, PemSource, WorkerCredentials};

use crate::{
    args::CredentialsArgs,
    error::{Failure, Outcome},
};

/// Reads them, if any are named.
pub(super) fn load(args: &CredentialsArgs) -> Outcome<Option<WorkerCredentials>> {
    let Some(ca) = &args.credentials_ca else {
        return Ok(None);
    };
    let mut recipe = CredentialSource::new(PemSource::file(ca))
        .mutual(!args.no_mutual)
        .expecting(args.expect.iter().cloned());
    if let (Some(certificate), Some(key)) = (&args.credentials_cert, &args.credentials_key) {
        recipe = recipe.identity(PemSource::file(certificate), PemSource::file(key));
    }
    recipe
        .load()
        .map(Some)
        .map_err(|error| Failure::Usage(error.to_string()))
}
