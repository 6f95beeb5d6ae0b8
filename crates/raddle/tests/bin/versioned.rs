//! A program of another version than Raddle's, whose workers say so.

fn main() {
    raddle::pool::serve::main_if_asked("7.8.9");
}
