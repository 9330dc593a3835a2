#pragma once

using dispatch_queue_t = struct dispatch_queue_s *;
using dispatch_data_t  = struct dispatch_data_s *;
