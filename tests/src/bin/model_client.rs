//! One client of the model-based test: makes the calls that it is told to make on standard input. See
//! `bivouac_tests::model`.

fn main() {
    bivouac_tests::model::serve();
}
