// Attention as a job for threads.
#pragma once

#include "../python/threads.h"
#include "call.h"

namespace rsoftmax {

void attention_work(Job<AttentionCall>& job);
// The number of threads that pays.
long attention_threads(const AttentionCall& call);

}  // namespace rsoftmax
