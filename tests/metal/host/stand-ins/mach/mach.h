#pragma once

using task_id_token_t = unsigned int;
using mach_port_t     = unsigned int;
using kern_return_t   = int;
using task_t          = unsigned int;
