//! A program of another version, whose workers report that version.

fn main() {
    raddle::pool::serve::main_if_asked("7.8.9");
}
