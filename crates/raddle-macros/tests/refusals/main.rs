//! What cannot be a routine does not compile, and the compiler says why, at the place where it stands.

#[test]
fn what_cannot_be_a_routine_is_refused_where_it_stands() {
    // One test, and few files: each is a crate of its own to the compiler.
    trybuild::TestCases::new().compile_fail("tests/refusals/cases/*.rs");
}
