//! The attributes of Raddle. The crate `raddle` documents them for applications.

mod lifecycle;
mod main_function;
mod routine;

use proc_macro::TokenStream;

/// Features of this build of `raddle`.
const FEATURES: Features = Features {
    calls: cfg!(feature = "pool"),
    tasks: cfg!(feature = "queue"),
};

/// Which functions are generated beside a routine.
#[derive(Clone, Copy)]
struct Features {
    /// A function that calls the routine in a pool.
    calls: bool,
    /// A function that creates a task for the routine.
    tasks: bool,
}

/// Makes a function callable from other processes, in a pool or as a task.
#[proc_macro_attribute]
pub fn routine(options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = routine::expand(options.into(), item.clone().into(), FEATURES);
    or_original_item(expanded, || routine::without_declaration(item.into()))
}

/// Makes the methods and associated functions of this `impl` block with `#[raddle::routine]`
/// routines.
#[proc_macro_attribute]
pub fn routines(options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = routine::expand_impl(options.into(), item.clone().into(), FEATURES);
    or_original_item(expanded, || routine::without_attributes(item.into()))
}

/// Makes a program its own worker.
#[proc_macro_attribute]
pub fn main(options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = main_function::expand(options.into(), item.into());
    expanded
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Runs a function once in each process that runs routines, before the first. The returned value is
/// the process's state of that type, which routines take as `raddle::State<T>`.
#[proc_macro_attribute]
pub fn startup(options: TokenStream, item: TokenStream) -> TokenStream {
    lifecycle_hook(lifecycle::Stage::Startup, options, item)
}

/// Runs a function once in each process that has run routines, after the last.
#[proc_macro_attribute]
pub fn shutdown(options: TokenStream, item: TokenStream) -> TokenStream {
    lifecycle_hook(lifecycle::Stage::Shutdown, options, item)
}

fn lifecycle_hook(stage: lifecycle::Stage, options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = lifecycle::expand(stage, options.into(), item.clone().into());
    or_original_item(expanded, || item.into())
}

/// Emits the original item after a compile error, so that its uses are not reported as errors as
/// well.
fn or_original_item(
    expanded: syn::Result<proc_macro2::TokenStream>,
    item: impl FnOnce() -> proc_macro2::TokenStream,
) -> TokenStream {
    let refused = |error: syn::Error| {
        let mut all = error.into_compile_error();
        all.extend(item());
        all
    };
    expanded.unwrap_or_else(refused).into()
}
