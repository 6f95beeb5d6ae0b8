//! Allocation of the WAL index (`-shm`), which SQLite maps.
//!
//! SQLite extends that file by writing one byte per 4 KiB. On file systems with smaller blocks the
//! rest of a page has no block until a store touches it, and on a full disk that store raises
//! SIGBUS. So each region is allocated as a whole when SQLite maps it (`MADV_POPULATE_WRITE`), and
//! a full disk is an error of the transaction. Kernels before 5.14 do not know the call; there
//! nothing changes.

use std::{
    ffi::{c_int, c_void},
    io,
    ptr::null_mut,
    sync::OnceLock,
};

use rusqlite::{Connection, ffi};
use rustix::{
    io::Errno,
    mm::{Advice, madvise},
};

use super::open::file_of;

/// SQLite's file methods, and a copy with our `xShmMap`.
static METHODS: OnceLock<(&ffi::sqlite3_io_methods, ffi::sqlite3_io_methods)> = OnceLock::new();

/// Makes `connection` allocate the WAL index as it maps it. To be called before its first
/// statement.
pub(super) fn allocate_when_mapped(connection: &Connection) {
    // SAFETY: the file is open, `connection` is not in use, and SQLite's method tables are
    // constants of the program.
    unsafe {
        let Some(file) = file_of(connection).as_mut() else {
            return;
        };
        let Some(found) = file.pMethods.as_ref::<'static>() else {
            return;
        };
        let (original, ours) = METHODS.get_or_init(|| {
            (
                found,
                ffi::sqlite3_io_methods {
                    xShmMap: Some(map_region),
                    ..*found
                },
            )
        });
        if std::ptr::eq(*original, found) {
            file.pMethods = ours;
        }
    }
}

/// `xShmMap`: maps a region of the index and allocates it.
unsafe extern "C" fn map_region(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    mapped: *mut *mut c_void,
) -> c_int {
    let Some(map) = METHODS.get().and_then(|(original, _)| original.xShmMap) else {
        return ffi::SQLITE_IOERR_SHMMAP;
    };
    // SAFETY: SQLite's own method with SQLite's own arguments; on success it has set `mapped` to a
    // region of `size` bytes.
    unsafe {
        match map(file, region, size, extend, mapped) {
            // SQLite does not report why the file could not be extended.
            ffi::SQLITE_IOERR_SHMSIZE
                if io::Error::last_os_error().kind() == io::ErrorKind::StorageFull =>
            {
                ffi::SQLITE_FULL
            }
            // Other errors show when SQLite uses the region.
            ffi::SQLITE_OK
                if !(*mapped).is_null()
                    && madvise(*mapped, size as usize, Advice::LinuxPopulateWrite)
                        == Err(Errno::FAULT) =>
            {
                *mapped = null_mut();
                ffi::SQLITE_FULL
            }
            code => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File, OpenOptions},
        io::Write,
        path::Path,
        process::Command,
    };

    use rusqlite::ErrorCode;

    use super::*;

    /// Blocks of 1 KiB, as `mkfs` chooses for small disks.
    const MOUNT: &str = r#"image=$(mktemp) && truncate -s 8m "$image" && mkfs.ext4 -q -b 1024 -m 0 "$image" && mount -o loop "$image" "$0"
        code=$?; rm "$image"; exit $code"#;
    /// The number of frames that the first region indexes.
    const FIRST_REGION: u64 = 4062;
    const FRAME: u64 = 512 + 24;

    /// Fills the disk except for `free` bytes.
    fn fill(ballast: &Path, free: u64) {
        let mut file = File::create(ballast).unwrap();
        for size in [64 * 1024, 1024] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        let taken = file.metadata().unwrap().len();
        OpenOptions::new()
            .write(true)
            .open(ballast)
            .unwrap()
            .set_len(taken - free)
            .unwrap();
    }

    /// The WAL grows until it needs another region of the index. Without allocation, the first
    /// store to that region raises SIGBUS.
    #[test]
    fn growing_the_index_on_a_full_disk_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        if !Command::new("sh")
            .args(["-c", MOUNT])
            .arg(directory.path())
            .status()
            .is_ok_and(|status| status.success())
        {
            raddle_testnet::skip("only root can mount a small disk: run the tests as root");
            return;
        }
        let (path, ballast) = (
            directory.path().join("x.db"),
            directory.path().join("ballast"),
        );
        let connection = Connection::open(&path).unwrap();
        allocate_when_mapped(&connection);
        let setup = "PRAGMA page_size = 512; PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; PRAGMA synchronous = OFF; CREATE TABLE t (x)";
        connection.execute_batch(setup).unwrap();
        let frames = || {
            fs::metadata(directory.path().join("x.db-wal"))
                .unwrap()
                .len()
                / FRAME
        };
        while frames() < FIRST_REGION - 40 {
            connection
                .execute("INSERT INTO t VALUES (zeroblob(5000))", [])
                .unwrap();
        }
        let mut refused = 0;
        for free in 0_u64.. {
            assert!(free < 500, "the insert never succeeds");
            fill(&ballast, free * 1024);
            let grown = connection.execute("INSERT INTO t VALUES (zeroblob(50000))", []);
            fs::remove_file(&ballast).unwrap();
            match grown {
                Ok(_) => break,
                Err(error) => {
                    assert_eq!(
                        error.sqlite_error_code(),
                        Some(ErrorCode::DiskFull),
                        "with {free} KiB: {error}"
                    )
                }
            }
            refused += 1;
        }
        assert!(refused > 0 && frames() > FIRST_REGION, "{refused}");
        let sound: String = connection
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(sound, "ok");
        drop(connection);
        assert!(
            Command::new("umount")
                .arg(directory.path())
                .status()
                .unwrap()
                .success()
        );
    }
}
