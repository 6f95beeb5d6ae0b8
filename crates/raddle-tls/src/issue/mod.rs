//! Development certificates: issuing them, and describing any (feature `issue`).
//!
//! An [`Authority`] is a CA in two files. It keeps no list of what it has issued, revokes nothing,
//! and its key is not encrypted. Use another CA where that is not enough; credentials accept its
//! certificates too.

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
