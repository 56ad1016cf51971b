// Attention as a job for threads.
#pragma once

#include "../python/threads.h"
#include "call.h"

namespace rsoftmax {

void attention_work(Job<AttentionCall>& job);
long attention_threads(const AttentionCall& call);                    // how many are worth while

}  // namespace rsoftmax
