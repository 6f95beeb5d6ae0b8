use proc_macro2::TokenStream;
use quote::quote;

use super::*;

const ALL: Features = Features {
    calls: true,
    tasks: true,
};

/// Returns the expansion of a function, without whitespace.
fn expanded(item: TokenStream) -> String {
    compact(expand(TokenStream::new(), item, ALL).expect("it is one"))
}

fn expanded_impl(item: TokenStream) -> String {
    compact(expand_impl(TokenStream::new(), item, ALL).expect("they are some"))
}

fn compact(tokens: TokenStream) -> String {
    syn::parse2::<syn::File>(tokens.clone()).expect("it is Rust");
    tokens.to_string().replace([' ', '\n'], "")
}

fn assert_contains(expanded: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            expanded.contains(&part.replace(' ', "")),
            "no '{part}' in {expanded}"
        );
    }
}

/// Avoids `quote!`, in which `rustfmt` breaks every function into three lines.
macro_rules! cases {
    ($($message_part:literal: $item:item)*) => { [$((quote!($item), $message_part)),*] };
}

#[test]
fn refuses_invalid_routines() {
    for (item, message_part) in cases! {
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
        let message = expand(TokenStream::new(), item, ALL)
            .expect_err("it is refused")
            .to_string();
        assert!(message.contains(message_part), "{message}");
    }
    let method = quote! { fn f(&self) {} };
    let message = expand(TokenStream::new(), method, ALL)
        .expect_err("it is refused")
        .to_string();
    assert!(
        message.contains("put #[raddle::routines] on that"),
        "{message}"
    );
}

#[test]
fn refuses_invalid_impl_blocks() {
    for (item, message_part) in cases! {
        "its type cannot either": impl<T> Point<T> { #[routine] fn f() {} }
        "its type cannot either": impl Point<u8> { #[routine] fn f() {} }
        "the functions of a trait": impl Clone for Point { #[routine] fn f() {} }
        "a type with a name": impl [u8] { #[routine] fn f() {} }
        "nothing in here": impl Point { fn f() {} }
        "so its changes are lost": impl Point { #[raddle::routine] fn f(&mut self) {} }
        "takes `self` or `&self`": impl Point { #[raddle::routine] fn f(self: Box<Self>) {} }
        "takes `self` or `&self`": impl Point { #[raddle::routine] fn f(&'static self) {} }
        "take `self`": impl Point { #[routine] fn f(&self) -> impl Stream<Item = u8> { s } }
        "options go into brackets": impl Point { #[routine = "x"] fn f() {} }
        "the options are": impl Point { #[routine(nmae = "x")] fn f() {} }
        "expected": fn f() {}
    } {
        let message = expand_impl(TokenStream::new(), item, ALL)
            .expect_err("it is refused")
            .to_string();
        assert!(message.contains(message_part), "{message}");
    }
    let message = expand_impl(quote!(name = "x"), quote!(impl P {}), ALL)
        .expect_err("it is refused")
        .to_string();
    assert!(message.contains("has no options"), "{message}");
}

#[test]
fn call_has_the_name_of_the_function() {
    let async_one = expanded(quote! {
        /// Adds.
        #[inline]
        pub(crate) async fn add(a: u64, mut b: u64) -> u64 { b += a; b }
    });
    assert_contains(
        &async_one,
        &[
            "pub(crate) fn add(a: u64, b: u64) -> ::raddle::Call<u64>",
            "pub(crate) fn task(a: u64, b: u64) -> ::raddle::RoutineTask<u64>",
            "pub(crate) async fn local(a: u64, mut b: u64) -> u64 { b += a; b }",
            "pub(crate) const NAME: &'static str = ::core::concat!(::core::module_path!(), \"::\", \"add\")",
            "::raddle::__private::RoutineFn::Async(",
        ],
    );
    assert_eq!(
        async_one.matches("#[inline]").count(),
        1,
        "only the user's own is as the user wrote it: {async_one}"
    );
    assert_eq!(async_one.matches("Adds.").count(), 1, "{async_one}");
    assert_contains(
        &expanded(quote! { fn f() {} }),
        &["fn f() -> ::raddle::Call<()>", "RoutineFn::Plain("],
    );
    assert_contains(
        &expanded(quote! { fn r#match(r#type: u8) {} }),
        &["\"::\", \"match\"", "\"type\""],
    );
}

#[test]
fn resolves_result_types_and_aliases() {
    assert_contains(
        &expanded(quote! { fn f() -> Result<u8, String> { Ok(1) } }),
        &[
            "-> ::raddle::Call<u8, String>",
            "-> ::raddle::RoutineTask<u8>",
            "::core::result::Result<u8, String>",
        ],
    );
    assert_contains(
        &expanded(quote! { fn f() -> io::Result<u8> { Ok(1) } }),
        &[
            "::raddle::Call<<io::Result<u8> as ::raddle::__private::RoutineReturn>::Value, \
         <io::Result<u8> as ::raddle::__private::RoutineReturn>::Error>",
            "::raddle::RoutineTask<<io::Result<u8> as ::raddle::__private::RoutineReturn>::Value>",
        ],
    );
    assert_contains(
        &expanded(quote! { fn f() -> fmt::Result { Ok(()) } }),
        &["<fmt::Result as ::raddle::__private::RoutineReturn>::Value"],
    );
}

#[test]
fn streams_are_call_streams_and_task_vectors() {
    assert_contains(
        &expanded(quote! { fn f(n: u8) -> impl futures::Stream<Item = Row> + Send { s } }),
        &[
            "-> ::raddle::CallStream<Row>",
            "-> ::raddle::RoutineTask<::std::vec::Vec<Row>>",
            "fn local(n: u8) -> impl futures::Stream<Item = Row> + Send",
            "RoutineFn::Stream(",
        ],
    );
}

#[test]
fn generates_typed_transcoding() {
    assert_contains(
        &expanded(quote! { fn f(a: u8, b: Vec<u8>) {} }),
        &[
            "::raddle::__private::EncodedArgs::new(2usize).rewritten_by(|__packed| {",
            "<Vec<u8> as ::raddle::__private::RoutineValue>::rewrite(&mut __rewriting, \"b\")?;",
        ],
    );
    assert_contains(
        &expanded_impl(quote! { impl P { #[routine] fn f(&self) {} } }),
        &["<Self as ::raddle::__private::RoutineValue>::rewrite(&mut __rewriting, \"self\")?;"],
    );
}

#[test]
fn declarations_generate_only_a_call() {
    let declared = |item| compact(expand(quote!(name = "py.embed"), item, ALL).expect("it is one"));
    let embed = declared(quote! {
        /// Says it in numbers.
        pub(crate) async fn embed(text: String) -> Result<Vec<f32>, Trouble>;
    });
    assert_contains(
        &embed,
        &[
            "pub(crate) fn embed(text: String) -> ::raddle::Call<Vec<f32>, Trouble>",
            "pub(crate) const NAME: &'static str = \"py.embed\"",
        ],
    );
    assert_eq!(embed.matches("numbers.").count(), 1, "{embed}");
    for absent in ["submit!", "fn task", "fn local"] {
        assert!(!embed.contains(&absent.replace(' ', "")), "{embed}");
    }
    assert_contains(
        &declared(quote! { fn f() -> impl Stream<Item = u8>; }),
        &["fn f() -> ::raddle::CallStream<u8>"],
    );
    assert_contains(
        &declared(quote! { fn f() -> Other; }),
        &["Probe::<Other>::IS_RESULT"],
    );
}

#[test]
fn generates_no_call_without_pools() {
    let item = quote! { fn f(a: u8) -> u8 { a } };
    let without = compact(
        expand(
            TokenStream::new(),
            item,
            Features {
                calls: false,
                tasks: true,
            },
        )
        .expect("it is one"),
    );
    assert!(!without.contains("Call"), "{without}");
    assert_contains(&without, &["fn task(a: u8)", "fn local(a: u8)"]);
}

#[test]
fn applies_cfg_to_all_generated_items() {
    let all = expanded(quote! { #[cfg(unix)] #[deprecated] fn f() {} });
    // The call, the type, its `impl`, two functions in it, and the entry.
    assert_eq!(all.matches("#[cfg(unix)]").count(), 6, "{all}");
    assert_eq!(all.matches("#[deprecated]").count(), 3, "{all}");
}

#[test]
fn methods_are_registered_outside_their_block() {
    let all = expanded_impl(quote! {
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
    assert_contains(
        &all,
        &[
            "pub fn scale(self, by: f64) -> ::raddle::Call<Self>",
            "pub fn scale_task(self, by: f64) -> ::raddle::RoutineTask<Self>",
            "pub async fn scale_local(mut self, by: f64) -> Self { self }",
            "::core::concat!(::core::module_path!(), \"::\", \"geometry::Point\", \"::\", \"scale\")",
            "<geometry::Point as ::raddle::__private::RoutineValue>::take(&mut __arguments, \"self\")?",
            "fn length(&self) -> ::raddle::Call<f64>",
            "<geometry::Point>::length_local(&__argument_self)",
            "fn nearest(of: Vec<Self>) -> ::raddle::Call<Self, Empty>",
            "<Vec<geometry::Point> as ::raddle::__private::RoutineValue>::take(&mut __arguments, \"of\")?",
            "fn other(&mut self) {}",
            "const ZERO",
        ],
    );
    assert!(
        !all.contains("routine]") && !all.contains("#[routine"),
        "{all}"
    );
}

#[test]
fn refused_blocks_are_emitted_unchanged() {
    let block = quote! { impl Point { #[raddle::routine(name = "x")] fn f(&mut self) {} } };
    assert_eq!(
        without_attributes(block).to_string(),
        quote! { impl Point { fn f(&mut self) {} } }.to_string()
    );
}
