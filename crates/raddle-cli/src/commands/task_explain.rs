//! `raddle task explain`: why a task is not running.

use raddle_client::explain::title;
