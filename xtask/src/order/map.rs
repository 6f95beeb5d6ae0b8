//! What lld tells of a program that it has linked: where each section of each object has got to.

use std::collections::{BTreeMap, HashMap, HashSet};

/// A section of an object, with machine code in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    /// The object that it comes from: `crt1.o`, or `libc.a:malloc.o`.
    pub(crate) file: String,
    pub(crate) size: u64,
    /// Whether others have the same name.
    pub(crate) is_one_of_many: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Map {
    /// By address.
    sections: BTreeMap<u64, Section>,
    entries: Vec<u64>,
}

impl Map {
    /// Reads `-Map`: lines of address, load address, size, alignment, and what is there. That is an output section, and deeper, a section of an input, or
    /// deeper still, a symbol.
    pub(crate) fn parse(text: &str) -> Self {
        let mut map = Self::default();
        let mut code = 0..0;
        for line in text.lines().skip(1) {
            let mut words = line.split_ascii_whitespace();
            let mut number = || u64::from_str_radix(words.next()?, 16).ok();
            let (Some(address), Some(_), Some(size)) = (number(), number(), number()) else { continue };
            let what = words.skip(1).collect::<Vec<_>>().join(" ");
            if let Some(section) = section(&what, size) {
                code = address..address + size;
                map.sections.insert(address, section);
                map.entries.push(address);
            } else if code.contains(&address) {
                map.entries.push(address);
            }
        }
        map.entries.sort_unstable();
        map.entries.dedup();
        let mut names: HashMap<String, usize> = HashMap::new();
        for section in map.sections.values() {
            *names.entry(section.name.clone()).or_default() += 1;
        }
        for section in map.sections.values_mut() {
            section.is_one_of_many = names[&section.name] > 1;
        }
        map
    }

    /// Where functions begin.
    pub(crate) fn entries(&self) -> &[u64] {
        &self.entries
    }

    /// The sections with these addresses, in their order, each once.
    pub(crate) fn sections_at(&self, addresses: &[u64]) -> Vec<&Section> {
        let mut seen = HashSet::new();
        let found = addresses.iter().filter_map(|address| {
            let (begin, section) = self.sections.range(..=address).next_back()?;
            (*address < begin + section.size && seen.insert(*begin)).then_some(section)
        });
        found.collect()
    }
}

/// `path/libc.a(malloc.o):(.text)`, or `path/some.o:(.text.name)`.
fn section(what: &str, size: u64) -> Option<Section> {
    let (object, name) = what.strip_suffix(')')?.rsplit_once(":(")?;
    let is_code = size > 0 && (name == ".text" || name.starts_with(".text."));
    let file = object.rsplit_once('/').map_or(object, |(_, file)| file);
    let file = file.trim_end_matches(')').replace('(', ":");
    is_code.then(|| Section { name: name.to_owned(), file, size, is_one_of_many: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
             VMA              LMA     Size Align Out     In      Symbol
          201000           201000   287af4  4096 .rodata
          201000           201000        8     1         /a/raddle.o:(.rodata.cst8)
          717b00           717b00   1459ee    64 .text
          717b00           717b00       40    16         /a/raddle.o:(.text._RNvCs1_3one)
          717b00           717b00       3c     1                 one::<A, B>
          717b40           717b40       80    16         /lib/libc.a(malloc.o):(.text)
          717b40           717b40       20     1                 malloc
          717b60           717b60       20     1                 free
          717bc0           717bc0        0     1         /a/raddle.o:(.text.none)
          717bc0           717bc0       20     1         /lib/crt1.o:(.text)
               0                0       10     1 .comment
";

    #[test]
    fn functions_are_found_in_sections_and_beside_each_other() {
        let map = Map::parse(TEXT);
        assert_eq!(map.entries(), [0x71_7b00, 0x71_7b40, 0x71_7b60, 0x71_7bc0]);
        let section = |name: &str, file: &str, size, is_one_of_many| Section {
            name: name.into(),
            file: file.into(),
            size,
            is_one_of_many,
        };
        let one = section(".text._RNvCs1_3one", "raddle.o", 0x40, false);
        let malloc = section(".text", "libc.a:malloc.o", 0x80, true);
        let first = section(".text", "crt1.o", 0x20, true);
        assert_eq!(map.sections_at(&[0x71_7b60, 0x71_7b40, 0x71_7bc0, 0x71_7b00]), [&malloc, &first, &one]);
        assert_eq!(map.sections_at(&[0x20_1000, 0x71_7be0, 0x90_0000]), [] as [&Section; 0]);
    }
}
