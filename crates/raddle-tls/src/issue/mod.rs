//! Making certificates for development and tests, and saying what is in those that there are (feature `issue`).
//!
//! An [`Authority`] is a CA in two files. It knows of nothing but names and times: it keeps no list of what it has issued, revokes nothing, and its key is
//! not encrypted. Where that is not enough there are CAs that do more, and credentials take their certificates all the same.

mod authority;
mod describe;
mod files;
mod name;
mod pem;
mod validity;

#[cfg(test)]
pub(crate) use self::pem::pem;
pub use self::{
    authority::{Authority, IssueError, IssuedCertificate},
    describe::{CertificateDescription, DescribeError, PemContents, describe},
    files::{FilesError, write_pair},
    name::{SubjectName, SubjectNameError},
    validity::Validity,
};
