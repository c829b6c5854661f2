# Tables and faults of kernel_report.sh, from three files of fields parted by "|": the worked-out kernel_table.txt (operation,
# instance, threads, dynamic shared memory, demands, formula of the bytes, of the matrix FLOP, then "bytes flop other special"); per architecture and kernel
# "registers shared stack stores loads" of the compiler and "load store async matrix fragments local" of the code. Faults go to the
# standard error; exit code 1 when there are any.

BEGIN {
    ARCHS = split("sm_80 sm_90 sm_100", archs, " ")
    # H200: datasheet rates at the clock at which they hold.
    SMS = 132; CLOCK = 1.83e9; BANDWIDTH = 4.8e12
    TENSOR = 4096; LANES = 128; SPECIALS = 16 # per cycle and multiprocessor: FLOP, fp32 or integer operations, special functions
    # Of a multiprocessor: registers, warps, blocks; shared memory by architecture, a block's own and 1 KiB of the system.
    REGISTERS = 65536; WARPS = 64; BLOCKS = 32
    shared_of["sm_80"] = 164 * 1024; shared_of["sm_90"] = 228 * 1024; shared_of["sm_100"] = 228 * 1024
}

function fault(text) { print "error: " text > "/dev/stderr"; faults++ }
function base_of(name) { sub(/<.*/, "", name); return name }
# Whether an instance is one that goes by 16-byte accesses: not those whose first flag is false, nor those whose first argument, elements at a time, is 1.
function is_wide(name) { return name !~ /<1[,>]/ && (!match(name, /true|false/) || substr(name, RSTART, 4) == "true") }
function thousands(x,    text, out) {
    text = sprintf("%.0f", x)
    while (length(text) > 3) { out = "," substr(text, length(text) - 2) out; text = substr(text, 1, length(text) - 3) }
    return text out
}
function formula(text) { gsub(/\*/, " ", text); gsub(/[+]/, " + ", text); return text }
function warps_of(arch, threads, registers, shared,    warps, blocks, most) {
    warps = int((threads + 31) / 32)
    blocks = int(WARPS / warps)
    if (blocks > BLOCKS) blocks = BLOCKS
    most = int(REGISTERS / (int((registers * 32 + 255) / 256) * 256 * warps))
    if (most < blocks) blocks = most
    most = int(shared_of[arch] / (int((shared + 127) / 128) * 128 + 1024))
    if (most < blocks) blocks = most
    return blocks * warps
}

FILENAME ~ /table$/ {
    rows++
    operation[rows] = $1; instance[rows] = $2; threads[rows] = $3; dynamic[rows] = $4; demands[rows] = $5; bytes_text[rows] = $6; flop_text[rows] = $7
    split($8, value, " ")
    bytes[rows] = value[1]; flop[rows] = value[2]; other[rows] = value[3]; special[rows] = value[4]
    demand_of[base_of($2)] = $5
    next
}
FILENAME ~ /compiler$/ {
    split($3, value, " ")
    registers[$1, $2] = value[1]; shared[$1, $2] = value[2]
    instances[$1]++
    if (value[3] > 0) stacks[$1]++
    if (value[4] + value[5] > 0) {
        spills[$1]++
        fault($2 " spills on " $1 ": " value[4] " bytes stored, " value[5] " loaded")
    }
    if (!(base_of($2) in demand_of)) { if (!told[base_of($2)]++) fault(base_of($2) " is not in kernel_table.txt") }
    if (value[1] > most[$1]) { most[$1] = value[1]; most_name[$1] = $2 }
    next
}
{
    split($3, value, " ")
    load[$1, $2] = value[1]; store[$1, $2] = value[2]; async[$1, $2] = value[3]; matrix[$1, $2] = value[4]; fragments[$1, $2] = value[5]
    if (value[6] > 0) fault($2 " accesses local memory " value[6] " times on " $1)
    local[$1] += value[6]
    demand = demand_of[base_of($2)]
    if (is_wide($2)) {
        if (demand ~ /load/ && value[1] == 0) fault($2 " has no 16-byte loads on " $1)
        if (demand ~ /store/ && value[2] == 0) fault($2 " has no 16-byte stores on " $1)
        if (demand ~ /load|store/) vectors[$1]++
    }
    if (demand ~ /tensor/) {
        if (value[4] == 0 || value[5] == 0) fault($2 " does not use tensor cores fed from shared memory on " $1)
        if (value[3] == 0) fault($2 " has no asynchronous copies on " $1)
        tensors[$1]++
    }
}

END {
    print "### What each kernel must do\n"
    print "| operation | must move, bytes | matrix FLOP | MB | floor, cycles | floor, µs | bound by |"
    print "|---|---|---|---|---|---|---|"
    for (i = 1; i <= rows; i++) {
        if (bytes[i] == 0) continue
        time["memory"] = bytes[i] / (BANDWIDTH / CLOCK)
        time["tensor cores"] = flop[i] / (SMS * TENSOR)
        time["arithmetic"] = other[i] / (SMS * LANES)
        time["special functions"] = special[i] / (SMS * SPECIALS)
        bound = "memory"
        for (what in time) if (time[what] > time[bound]) bound = what
        printf "| %s | %s | %s | %s | %s | %.1f | %s |\n", operation[i], formula(bytes_text[i]),
            flop[i] == 0 ? "" : formula(flop_text[i]), thousands(bytes[i] / 1e6), thousands(time[bound]), time[bound] / CLOCK * 1e6, bound
    }
    print "\n### What the compiler made of it\n"
    printf "nvcc %s. Three numbers in a cell are sm_80, sm_90, sm_100.\n\n", version
    print "| kernel | registers | shared memory, bytes | warps of 64 | 16-byte loads | 16-byte stores | asynchronous copies | matrix instructions | matrix loads |"
    print "|---|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= rows; i++) {
        if (demands[i] ~ /small/) continue
        for (c = 1; c <= 8; c++) cell[c] = ""
        for (k = 1; k <= ARCHS; k++) {
            key = archs[k] SUBSEP instance[i]
            if (!(key in registers)) { fault(instance[i] " of kernel_table.txt is not among the kernels of " archs[k]); continue }
            if (disassembled && !(key in load)) fault(instance[i] " was not found in the code of " archs[k])
            sep = k == 1 ? "" : " / "
            cell[1] = cell[1] sep registers[key]
            if (k == 1) cell[2] = shared[key] + dynamic[i]
            cell[3] = cell[3] sep warps_of(archs[k], threads[i], registers[key], shared[key] + dynamic[i])
            cell[4] = cell[4] sep load[key]; cell[5] = cell[5] sep store[key]; cell[6] = cell[6] sep async[key]
            cell[7] = cell[7] sep matrix[key]; cell[8] = cell[8] sep fragments[key]
        }
        line = "| `" instance[i] "` |"
        for (c = 1; c <= 8; c++) line = line " " (cell[c] == "0 / 0 / 0" ? "" : cell[c]) " |"
        print line
    }
    print "\n### All instances\n"
    print "| | kernels | with spills | with a stack frame | accesses of local memory | demanded and found: 16-byte accesses | tensor cores and asynchronous copies | most registers |"
    print "|---|---|---|---|---|---|---|---|"
    for (k = 1; k <= ARCHS; k++) {
        a = archs[k]
        printf "| %s | %d | %d | %d | %s | %d | %d | %d, `%s` |\n", a, instances[a], spills[a], stacks[a], disassembled ? local[a] + 0 : "?",
            vectors[a], tensors[a], most[a], most_name[a]
    }
    exit faults > 0
}
