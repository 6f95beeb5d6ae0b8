//! The linker script: names of sections, with as little as can be of what another build has otherwise in them.

use std::collections::HashSet;

use crate::map::Section;

const HEAD: &str = "\
/* What 'raddle run' calls, in the order in which it does, to be put side by side: each page of the program that is needed takes time to be mapped.
 * Written by 'cargo xtask order': do not edit. What is named here and is there no longer is passed over, and what is not named stands where it did.
 */
SECTIONS
{
  .text.first :
  {
";
const FOOT: &str = "  }\n}\nINSERT BEFORE .text;\n";

pub(crate) fn write(sections: &[&Section]) -> String {
    let mut seen = HashSet::new();
    let patterns = sections.iter().map(|section| pattern(section)).filter(|pattern| seen.insert(pattern.clone()));
    let lines: String = patterns.map(|pattern| format!("    {pattern}\n")).collect();
    [HEAD, &lines, FOOT].concat()
}

/// Functions of the C library are in sections of the same name, of many objects.
fn pattern(Section { name, file, is_one_of_many, .. }: &Section) -> String {
    if *is_one_of_many {
        return format!("*{}({name})", any_version(file));
    }
    let name = any_build(name);
    // What compilers make of a function that stands alone already, they number.
    match name.rsplit_once('.') {
        Some((function, number)) if number.bytes().all(|b| b.is_ascii_digit()) => format!("*({function} {function}.*)"),
        _ => format!("*({name})"),
    }
}

/// `libm-2.36.a:s_ceil.o` is `libm-*.a:s_ceil.o`.
fn any_version(file: &str) -> String {
    let (archive, member) = file.split_once(':').unwrap_or((file, ""));
    match (archive.split_once('-'), archive.rsplit_once('.')) {
        (Some((library, _)), Some((_, kind))) if !member.is_empty() => format!("{library}-*.{kind}:{member}"),
        _ => file.to_owned(),
    }
}

/// A name in which crates have the marks of any version, compiler and set of features: `Cs1a2B3_6raddle` is `Cs*_6raddle`. Where a name refers back to
/// a part of itself, it counts letters from the beginning, and marks are not all of the same length.
fn any_build(name: &str) -> String {
    let is_crate = |mark: &str, next: &str| !mark.is_empty() && next.starts_with(|c: char| c.is_ascii_digit());
    let any_crate = any(name, "Cs", is_crate);
    if any_crate == name { any_crate } else { any(&any_crate, "B", |mark, _| mark.len() <= 3) }
}

/// Puts a star for each mark between `begin` and the next `_`. Whether it is one depends on itself and on what follows.
fn any(name: &str, begin: &str, is_mark: impl Fn(&str, &str) -> bool) -> String {
    let (mut all, mut rest) = (String::new(), name);
    while let Some((before, after)) = rest.split_once(begin) {
        all.extend([before, begin]);
        rest = match after.split_once('_') {
            Some((mark, next)) if mark.bytes().all(|b| b.is_ascii_alphanumeric()) && is_mark(mark, next) => {
                all.push_str("*_");
                next
            }
            _ => after,
        };
    }
    all + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_meant_whatever_build_it_is_of() {
        assert_eq!(any_build(".text._RNvCs1a2B3_6raddle3run"), ".text._RNvCs*_6raddle3run");
        assert_eq!(
            any_build(".text.unlikely._RINvNtCsaA_4core3ptr9drop_glueNtCs9z_5alloc3VecECs0_6raddle"),
            ".text.unlikely._RINvNtCs*_4core3ptr9drop_glueNtCs*_5alloc3VecECs*_6raddle"
        );
        assert_eq!(any_build(".text.sqlite3VdbeExec"), ".text.sqlite3VdbeExec");
        assert_eq!(
            any_build(".text._RNvCs1aCs9z_4coreB2_"),
            ".text._RNvCs*_4coreB*_",
            "a mark may have anything in it"
        );
        let (shorter, longer) = ("_RNvNtCs123_4core3fooNtBO_3Bar", "_RNvNtCs1234_4core3fooNtBP_3Bar");
        assert_eq!(any_build(shorter), any_build(longer));
        assert_eq!(any_build(shorter), "_RNvNtCs*_4core3fooNtB*_3Bar");
        assert_eq!(any_build(".text.sqlite3BtreeB1_x"), ".text.sqlite3BtreeB1_x", "it has no crate");
        assert_eq!(any_build(".text.getCsr_x"), ".text.getCsr_x", "no length follows");
        assert_eq!(any_build(".text.endsCs"), ".text.endsCs");
    }

    #[test]
    fn objects_are_named_where_sections_are_not() {
        let section = |name: &str, is_one_of_many| Section {
            name: name.into(),
            file: "libc.a:malloc.o".into(),
            size: 1,
            is_one_of_many,
        };
        let (whole, own) = (section(".text", true), section(".text.sqlite3Step", false));
        let script = write(&[&whole, &own, &own]);
        assert!(
            script.ends_with(
                "  {\n    *libc.a:malloc.o(.text)\n    *(.text.sqlite3Step)\n  }\n}\nINSERT BEFORE .text;\n"
            )
        );
    }
}
