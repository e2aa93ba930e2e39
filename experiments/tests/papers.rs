//! Published tables against their tolerances, and the shape of what a reproduction says.

mod papers {
    mod audit;
    mod kernels;
    mod report;
    mod tolerances;
    mod transcripts;
}
