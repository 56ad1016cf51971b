// Attention in which zeros save work, forward and backward: scores, exact thresholds, and products only where a weight
// is not zero, or dense ones where most weights are not.  The whole matrix of weights is never stored.
//
// From the bottom up: call.h says where everything lies; products.h multiplies small blocks; row_functions.cpp maps a
// row, with rows/quantile_hint.h; blocks.h is a block of rows; forward.h and backward.h are the two passes, with
// dropout.h; this file divides them among threads.

#include "attention.h"

#include "../simd/sums.h"
#include "backward.h"
#include "forward.h"

namespace rsoftmax {
namespace {

// How the rows of forward are divided: into heads, and those with many rows into parts.
struct RowPartition {
    // Rows of a head, rows of a part, and parts of a head.
    long rows, size, count;
    explicit RowPartition(const AttentionCall& call)
        : rows(call.groups * call.rows), size(rows >= 4 * block_rows ? 2 * block_rows : rows),
          count((rows + size - 1) / size) {}
    long total(const AttentionCall& call) const { return call.batch * call.heads * count; }
};

void forward_work(Job<AttentionCall>& job, Memory& memory) {
    Forward pass(job.call, memory);
    RowPartition parts(job.call);
    for (long part; (part = job.next++) < parts.total(job.call);) {
        long from = part % parts.count * parts.size;
        pass.map(part / parts.count, from, std::min(from + parts.size, parts.rows));
    }
}

void backward_work(Job<AttentionCall>& job, Memory& memory) {
    Backward pass(job.call, memory);
    HeadPartition parts(job.call);
    for (long part; (part = job.next++) < parts.count;)
        parts.heads(part, [&](long b, long h) { pass.map_head(b, h); });
}

}  // namespace

void attention_work(Job<AttentionCall>& job) {
    Memory memory;
    bool is_backward = job.call.g;
    if (!memory.reserve([&] { is_backward ? (void)Backward(job.call, memory) : (void)Forward(job.call, memory); }))
        job.out_of_memory = true;
    else is_backward ? backward_work(job, memory) : forward_work(job, memory);
}

long attention_threads(const AttentionCall& call) {
    long parts = call.g ? HeadPartition(call).count : RowPartition(call).total(call);
    long enough = 1 + call.batch * call.heads * call.groups * call.rows * call.length / 4096;
    return std::min<long>({call.threads, parts, enough});
}

}  // namespace rsoftmax
