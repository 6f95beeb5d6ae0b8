//! Where the folders of all namespaces are: in the one that a user has for what lasts as long as a session.

use std::{
    env, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use super::folder::{names, open_own, own_folder};

/// The folder that those of all namespaces are in.
#[derive(Debug)]
pub(super) struct Pools {
    /// Those that it is in, and that are ours as well: the first one first.
    above: Vec<PathBuf>,
    path: PathBuf,
}

impl Pools {
    /// That of this user.
    pub(super) fn of_user() -> Self {
        let from_env = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime_dir = choose(from_env, rustix::process::geteuid().as_raw(), |path| open_own(path).is_ok());
        let raddle = runtime_dir.join("raddle");
        let path = raddle.join("pools");
        Self { above: vec![runtime_dir, raddle], path }
    }

    /// Another one.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { above: Vec::new(), path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, if it is not there, for this user alone.
    pub(super) fn make(&self) -> io::Result<OwnedFd> {
        self.above.iter().try_for_each(|path| own_folder(path).map(drop))?;
        own_folder(&self.path)
    }

    /// Opens it, if it is there. What is in a folder of somebody else's may be anything, so each on the way to it is looked at.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        self.above.iter().try_for_each(|path| open_own(path).map(drop))?;
        open_own(&self.path)
    }

    /// The names of all folders that may be of a namespace.
    pub(super) fn namespaces(&self) -> io::Result<Vec<String>> {
        match self.open() {
            Ok(folder) => {
                let mut names = names(&folder);
                names.retain(|name| !name.starts_with('.') && self.path.join(name).is_dir());
                names.sort();
                Ok(names)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// The runtime folder. The last one of these is made, and has to prove itself then.
fn choose(from_env: Option<PathBuf>, user: u32, is_ours: impl Fn(&Path) -> bool) -> PathBuf {
    // The environment may be that of another user, whom somebody stands in for.
    let from_env = from_env.filter(|path| path.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{user}"));
    let mut known = from_env.into_iter().chain([usual]).filter(|path| is_ours(path));
    known.next().unwrap_or_else(|| PathBuf::from(format!("/tmp/raddle-{user}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_first_that_is_ours_is_chosen() {
        let choose = |from_env: Option<&str>, ours: &[&str]| {
            choose(from_env.map(PathBuf::from), 7, |path| ours.iter().any(|known| Path::new(known) == path))
        };
        for (from_env, ours, chosen) in [
            (Some("/x"), &["/x", "/run/user/7"][..], "/x"),
            (Some("/x"), &["/run/user/7"], "/run/user/7"),
            (Some("x"), &["x"], "/tmp/raddle-7"),
            (None, &["/run/user/7"], "/run/user/7"),
            (None, &[], "/tmp/raddle-7"),
        ] {
            assert_eq!(choose(from_env, ours), Path::new(chosen), "{from_env:?}, {ours:?}");
        }
    }

    #[test]
    fn folders_on_the_way_are_made_and_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let [outer, inner] = ["outer", "outer/inner"].map(|name| folder.path().join(name));
        let pools = Pools { path: inner.join("pools"), above: vec![outer.clone(), inner.clone()] };
        assert_eq!(pools.namespaces().unwrap(), [""; 0]);
        assert!(!outer.exists(), "who looks makes nothing");
        pools.make().unwrap();
        for path in [&outer, &inner, &pools.path] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        std::fs::create_dir(pools.path.join("name")).unwrap();
        assert_eq!(pools.namespaces().unwrap(), ["name"]);
        let set_mode = |mode| std::fs::set_permissions(&outer, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o770);
        assert!(pools.make().is_err() && pools.open().is_err() && pools.namespaces().is_err());
        set_mode(0o700);
        assert!(pools.open().is_ok());
        let elsewhere = folder.path().join("elsewhere");
        std::fs::rename(&inner, &elsewhere).unwrap();
        symlink(&elsewhere, &inner).unwrap();
        assert!(pools.make().is_err() && pools.open().is_err() && pools.namespaces().is_err());
    }
}
