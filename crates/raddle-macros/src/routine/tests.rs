use proc_macro2::TokenStream;
use quote::quote;

use super::*;

const ALL: Features = Features { calls: true, tasks: true };

/// What is written for a function, without spaces, which are the printer's.
fn written(item: TokenStream) -> String {
    compact(expand(TokenStream::new(), item, ALL).expect("it is one"))
}

fn written_impl(item: TokenStream) -> String {
    compact(expand_impl(TokenStream::new(), item, ALL).expect("they are some"))
}

fn compact(tokens: TokenStream) -> String {
    syn::parse2::<syn::File>(tokens.clone()).expect("it is Rust");
    tokens.to_string().replace([' ', '\n'], "")
}

fn has(written: &str, parts: &[&str]) {
    for part in parts {
        assert!(written.contains(&part.replace(' ', "")), "no '{part}' in {written}");
    }
}

/// For `rustfmt`, which gives every function in a `quote!` three lines.
macro_rules! cases {
    ($($said:literal: $item:item)*) => { [$((quote!($item), $said)),*] };
}

#[test]
fn what_cannot_be_a_routine_is_refused_with_a_word_of_why() {
    for (item, said) in cases! {
        "a routine cannot be generic": fn f<T>(of: T) {}
        "a routine cannot be generic": fn f() where u8: Copy {}
        "take it by value, as `String` for `&str`": fn f(text: &str) {}
        "`impl Trait` is generic": fn f(any: impl Clone) {}
        "give this argument a name": fn f((a, b): (u8, u8)) {}
        "a routine cannot be unsafe": unsafe fn f() {}
        "at most 12 arguments: put them into a struct":
            fn f(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, k: u8, l: u8, m: u8) {}
        "give it by value, as `String` for `&str`": fn f() -> &'static str { "" }
        "return `()`": fn f() -> ! { loop {} }
        "is `impl Stream<Item = …>`": fn f() -> impl Iterator<Item = u8> { [] }
        "is `impl Stream<Item = …>`": fn f() -> impl Stream { s }
        "make this a `fn`": async fn f() -> impl Stream<Item = u8> { s }
        "put #[raddle::routines] on that": fn f() -> Option<Vec<Self>> { None }
        "say what it is called there": async fn f(of: u8) -> u8;
        "expected": struct NotAFunction;
    } {
        let message = expand(TokenStream::new(), item, ALL).expect_err("it is refused").to_string();
        assert!(message.contains(said), "{message}");
    }
    let method = quote! { fn f(&self) {} };
    let message = expand(TokenStream::new(), method, ALL).expect_err("it is refused").to_string();
    assert!(message.contains("put #[raddle::routines] on that"), "{message}");
}

#[test]
fn what_cannot_have_routines_is_refused_with_a_word_of_why() {
    for (item, said) in cases! {
        "its type cannot either": impl<T> Point<T> { #[routine] fn f() {} }
        "its type cannot either": impl Point<u8> { #[routine] fn f() {} }
        "the functions of a trait": impl Clone for Point { #[routine] fn f() {} }
        "a type with a name": impl [u8] { #[routine] fn f() {} }
        "nothing in here": impl Point { fn f() {} }
        "what it changes there is lost": impl Point { #[raddle::routine] fn f(&mut self) {} }
        "takes `self` or `&self`": impl Point { #[raddle::routine] fn f(self: Box<Self>) {} }
        "takes `self` or `&self`": impl Point { #[raddle::routine] fn f(&'static self) {} }
        "take `self`": impl Point { #[routine] fn f(&self) -> impl Stream<Item = u8> { s } }
        "options go into brackets": impl Point { #[routine = "x"] fn f() {} }
        "the only option": impl Point { #[routine(nmae = "x")] fn f() {} }
        "expected": fn f() {}
    } {
        let message = expand_impl(TokenStream::new(), item, ALL).expect_err("it is refused").to_string();
        assert!(message.contains(said), "{message}");
    }
    let message = expand_impl(quote!(name = "x"), quote!(impl P {}), ALL).expect_err("it is refused").to_string();
    assert!(message.contains("has no options"), "{message}");
}

#[test]
fn the_functions_name_is_that_of_its_call() {
    let async_one = written(quote! {
        /// Adds.
        #[inline]
        pub(crate) async fn add(a: u64, mut b: u64) -> u64 { b += a; b }
    });
    has(
        &async_one,
        &[
            "pub(crate) fn add(a: u64, b: u64) -> ::raddle::Call<u64>",
            "pub(crate) fn task(a: u64, b: u64) -> ::raddle::Task<u64>",
            "pub(crate) async fn here(a: u64, mut b: u64) -> u64 { b += a; b }",
            "pub(crate) const NAME: &'static str = ::core::concat!(::core::module_path!(), \"::\", \"add\")",
            "::raddle::__private::Run::Async(",
        ],
    );
    assert_eq!(async_one.matches("#[inline]").count(), 1, "only the user's own is as the user wrote it: {async_one}");
    assert_eq!(async_one.matches("Adds.").count(), 1, "{async_one}");
    has(&written(quote! { fn f() {} }), &["fn f() -> ::raddle::Call<()>", "Run::Plain("]);
    has(&written(quote! { fn r#match(r#type: u8) {} }), &["\"::\", \"match\"", "\"type\""]);
}

#[test]
fn a_result_has_two_types_and_an_alias_knows_the_other() {
    has(
        &written(quote! { fn f() -> Result<u8, String> { Ok(1) } }),
        &["-> ::raddle::Call<u8, String>", "-> ::raddle::Task<u8>", "::core::result::Result<u8, String>"],
    );
    has(
        &written(quote! { fn f() -> io::Result<u8> { Ok(1) } }),
        &[
            "::raddle::Call<<io::Result<u8> as ::raddle::__private::Returns>::Value, \
         <io::Result<u8> as ::raddle::__private::Returns>::Error>",
            "::raddle::Task<<io::Result<u8> as ::raddle::__private::Returns>::Value>",
        ],
    );
    has(
        &written(quote! { fn f() -> fmt::Result { Ok(()) } }),
        &["<fmt::Result as ::raddle::__private::Returns>::Value"],
    );
}

#[test]
fn a_stream_is_called_as_one_and_is_a_list_as_a_task() {
    has(
        &written(quote! { fn f(n: u8) -> impl futures::Stream<Item = Row> + Send { s } }),
        &[
            "-> ::raddle::CallStream<Row>",
            "-> ::raddle::Task<::std::vec::Vec<Row>>",
            "fn here(n: u8) -> impl futures::Stream<Item = Row> + Send",
            "Run::Stream(",
        ],
    );
}

#[test]
fn arguments_are_written_in_json_by_their_types() {
    has(
        &written(quote! { fn f(a: u8, b: Vec<u8>) {} }),
        &[
            "::raddle::__private::Packed::new(2usize).rewritten_by(|__packed| {",
            "<Vec<u8> as ::raddle::__private::Crosses>::rewrite(&mut __rewriting, \"b\")?;",
        ],
    );
    has(
        &written_impl(quote! { impl P { #[routine] fn f(&self) {} } }),
        &["<Self as ::raddle::__private::Crosses>::rewrite(&mut __rewriting, \"self\")?;"],
    );
}

#[test]
fn a_function_without_a_body_is_called_and_never_run() {
    let declared = |item| compact(expand(quote!(name = "py.embed"), item, ALL).expect("it is one"));
    let embed = declared(quote! {
        /// Says it in numbers.
        pub(crate) async fn embed(text: String) -> Result<Vec<f32>, Trouble>;
    });
    has(
        &embed,
        &[
            "pub(crate) fn embed(text: String) -> ::raddle::Call<Vec<f32>, Trouble>",
            "pub(crate) const NAME: &'static str = \"py.embed\"",
        ],
    );
    assert_eq!(embed.matches("numbers.").count(), 1, "{embed}");
    for absent in ["submit!", "fn task", "fn here"] {
        assert!(!embed.contains(&absent.replace(' ', "")), "{embed}");
    }
    has(&declared(quote! { fn f() -> impl Stream<Item = u8>; }), &["fn f() -> ::raddle::CallStream<u8>"]);
    has(&declared(quote! { fn f() -> Other; }), &["Probe::<Other>::IS_RESULT"]);
}

#[test]
fn without_pools_there_is_no_call() {
    let item = quote! { fn f(a: u8) -> u8 { a } };
    let without = compact(expand(TokenStream::new(), item, Features { calls: false, tasks: true }).expect("it is one"));
    assert!(!without.contains("Call"), "{without}");
    has(&without, &["fn task(a: u8)", "fn here(a: u8)"]);
}

#[test]
fn what_a_function_depends_on_all_of_it_depends_on() {
    let all = written(quote! { #[cfg(unix)] #[deprecated] fn f() {} });
    // The call, the type, its functions as such and two of them, and the entry.
    assert_eq!(all.matches("#[cfg(unix)]").count(), 6, "{all}");
    assert_eq!(all.matches("#[deprecated]").count(), 3, "{all}");
}

#[test]
fn methods_stay_in_their_block_and_are_registered_beside_it() {
    let all = written_impl(quote! {
        impl geometry::Point {
            const ZERO: f64 = 0.0;
            #[raddle::routine]
            pub async fn scale(mut self, by: f64) -> Self { self }
            #[routine(name = "length")]
            fn length(&self) -> f64 { 0.0 }
            #[raddle::routine]
            fn nearest(of: Vec<Self>) -> Result<Self, Empty> { Err(Empty) }
            fn other(&mut self) {}
        }
    });
    has(
        &all,
        &[
            "pub fn scale(self, by: f64) -> ::raddle::Call<Self>",
            "pub fn scale_task(self, by: f64) -> ::raddle::Task<Self>",
            "pub async fn scale_here(mut self, by: f64) -> Self { self }",
            "::core::concat!(::core::module_path!(), \"::\", \"geometry::Point\", \"::\", \"scale\")",
            "<geometry::Point as ::raddle::__private::Crosses>::take(&mut __arguments, \"self\")?",
            "fn length(&self) -> ::raddle::Call<f64>",
            "<geometry::Point>::length_here(&__argument_self)",
            "fn nearest(of: Vec<Self>) -> ::raddle::Call<Self, Empty>",
            "<Vec<geometry::Point> as ::raddle::__private::Crosses>::take(&mut __arguments, \"of\")?",
            "fn other(&mut self) {}",
            "const ZERO",
        ],
    );
    assert!(!all.contains("routine]") && !all.contains("#[routine"), "{all}");
}

#[test]
fn a_block_that_is_refused_is_as_it_would_be_without_us() {
    let block = quote! { impl Point { #[raddle::routine(name = "x")] fn f(&mut self) {} } };
    assert_eq!(untouched(block).to_string(), quote! { impl Point { fn f(&mut self) {} } }.to_string());
}
