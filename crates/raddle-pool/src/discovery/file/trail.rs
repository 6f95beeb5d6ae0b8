//! The way to a file: where it can be seen that a path means something else.
//!
//! A path is taken along its symbolic links, one after the other. Kubernetes has `workers.json` lead to `..data/workers.json`, and `..data` to a
//! folder with the date in its name; what is exchanged is `..data`. Each link is a name in a folder, and so is what is at the end, or is missing there.

use std::{
    collections::{BTreeSet, VecDeque},
    ffi::{OsStr, OsString},
    fs,
    path::{Component, Path, PathBuf},
};

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// Where it can be seen that a path means something else.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trail {
    /// To be watched. None of them is behind a symbolic link.
    pub(super) folders: BTreeSet<PathBuf>,
    /// What is of interest there.
    names: BTreeSet<OsString>,
}

impl Trail {
    /// That of an absolute path, as it is now.
    pub(super) fn of(path: &Path) -> Self {
        let mut trail = Self::default();
        let (mut here, mut links) = (PathBuf::from("/"), 0);
        let mut ahead: VecDeque<OsString> = parts(path).collect();
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            let found = fs::symlink_metadata(&next).ok();
            if found.as_ref().is_some_and(fs::Metadata::is_symlink)
                && links < MOST_LINKS
                && let Ok(target) = fs::read_link(&next)
            {
                links += 1;
                trail.note(&here, &name);
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                parts(&target).rev().for_each(|part| ahead.push_front(part));
                continue;
            }
            let is_folder = found.is_some_and(|found| found.is_dir());
            if ahead.is_empty() || !is_folder {
                trail.note(&here, &name);
            }
            if !is_folder {
                return trail;
            }
            here = next;
        }
        trail.folders.insert(here);
        trail
    }

    fn note(&mut self, folder: &Path, name: &OsStr) {
        self.folders.insert(folder.to_owned());
        self.names.insert(name.to_owned());
    }

    /// Whether a change of what has this name may be one of what the path means.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| known.as_encoded_bytes() == name)
    }
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A trail below a folder, as text.
    fn shown(root: &Path, path: &Path) -> (Vec<String>, Vec<String>) {
        let Trail { folders, names } = Trail::of(path);
        let below = |path: PathBuf| path.strip_prefix(root).unwrap_or(&path).display().to_string();
        (folders.into_iter().map(below).collect(), names.into_iter().map(|n| n.into_string().unwrap()).collect())
    }

    #[test]
    fn links_are_followed_and_what_is_missing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        fs::create_dir_all(root.join("map/..one")).unwrap();
        fs::write(root.join("map/..one/w.json"), "").unwrap();
        symlink("..one", root.join("map/..data")).unwrap();
        symlink("..data/w.json", root.join("map/w.json")).unwrap();
        symlink(root.join("map"), root.join("link")).unwrap();
        symlink("../link/w.json", root.join("map/round.json")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        for (path, folders, names) in [
            ("map/..one/w.json", &["map/..one"][..], &["w.json"][..]),
            ("map/w.json", &["map", "map/..one"], &["..data", "w.json"]),
            ("link/w.json", &["", "map", "map/..one"], &["..data", "link", "w.json"]),
            ("map/round.json", &["", "map", "map/..one"], &["..data", "link", "round.json", "w.json"]),
            ("map", &["", "map"], &["map"]),
            ("link", &["", "map"], &["link", "map"]),
            ("none", &[""], &["none"]),
            ("none/at/all.json", &[""], &["none"]),
            ("map/..one/w.json/x", &["map/..one"], &["w.json"]),
            ("loop", &[""], &["loop"]),
        ] {
            assert_eq!(shown(&root, &root.join(path)), (texts(folders), texts(names)), "{path}");
        }
        assert_eq!(shown(&root, Path::new("/")), (texts(&["/"]), texts(&[])));
        let trail = Trail::of(&root.join("map/w.json"));
        assert_eq!(["..data", "w.json", "other"].map(|name| trail.has(name.as_bytes())), [true, true, false]);
    }
}
