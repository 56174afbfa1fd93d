// Words that host and device share. crates/cuda/src/plan.rs has the same structs; a test there
// compares the sizes.
#pragma once
#include <stdint.h>

// A rectangle of words on its way from the landing area to its fixed place.
struct Segment {
    uint64_t target;        // address of the first word
    uint32_t source;        // word offset in the landing area
    uint32_t rows;          // rows of the rectangle
    uint32_t width;         // words a row, also the stride in the landing area
    uint32_t target_stride; // words from row to row at the target
    uint32_t kind;          // SEGMENT_WORDS or SEGMENT_TOKENS
    uint32_t unused;
};
#define SEGMENT_WORDS 0u
#define SEGMENT_TOKENS 1u
#define SAMPLED_BY 0x80000000u

// A range of one sequence's context for one query token, or of the context that several sequences
// begin with.
struct DecodeItem {
    uint32_t sequence; // row of the block table; of a shared range, that of any of the sequences
    uint32_t token;    // row of the query, and of the output; unused in a shared range
    uint32_t begin;    // first position to read
    uint32_t end;      // position past the last
    uint32_t split;    // place of the range among those of the sequence
    uint32_t splits;   // number of ranges of the sequence; 0 marks an unused item; of a shared range,
                       // the number of sequences
    uint32_t partial;  // row of the sequence's first partial result; of a shared range, the place of
                       // the first of consecutive items, one of each sequence
    uint32_t length;   // tokens of the sequence, this step's included; 0 marks a shared range
};

// Some query tokens of one chunk.
struct PrefillItem {
    uint32_t sequence; // row of the block table
    uint32_t token;    // first row of the queries
    uint32_t count;    // query tokens
    uint32_t position; // position of the first one
};

// How one row is sampled. Floats hold what core's Draw says.
struct SamplingRow {
    uint32_t logit_row;
    uint32_t flags; // ROW_*
    float temperature;
    float top_p;
    float min_p;
    uint32_t top_k;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t seed_low;
    uint32_t seed_high;
    uint32_t choice;
    uint32_t position;
    uint32_t target;     // ROW_SCORE: the token that is scored
    uint32_t mask;       // ROW_MASK: row of the masks
    uint32_t state_row;  // ROW_STATE: row of the penalty state
    uint32_t bias_begin; // entries of the bias list
    uint32_t bias_end;
    uint32_t num_top; // ROW_LOGPROBS: alternatives
    uint32_t unused;
};
#define ROW_SCORE 1u
#define ROW_MASK 2u
#define ROW_STATE 4u
#define ROW_LOGPROBS 8u
#define ROW_GREEDY 16u
#define ROW_FILTERED 32u

#define MAX_TOP 20u
// What a row gives back.
struct SampledRow {
    uint32_t token;
    uint32_t fault; // 0 none, 1 not a number, 2 no allowed token
    float logprob;
    uint32_t rank;
    uint32_t top_tokens[MAX_TOP];
    float top_logprobs[MAX_TOP];
};

// What stands behind a product.
#define GATE_NONE 0u
#define GATE_SILU 1u
#define GATE_GELU_TANH 2u
