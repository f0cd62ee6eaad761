package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"hawser/tests/hometest"
)

// The benchmarks measure the programs as they are built, against a floor that is
// measured in the same run: what the same package costs without us.

// builtRig is a rig whose commands are the built program: $HAWSER_BIN's, or one
// built for the benchmark.
func builtRig(b *testing.B) *rig {
	b.Helper()
	r := newExternal(b)
	dir := os.Getenv("HAWSER_BIN")
	if dir == "" {
		dir = hometest.Dir(b)
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir+"/", ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make does
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	r.program = filepath.Join(dir, "fm-procevent")
	return r
}

// bare runs the package's entrypoint by itself, as often as an operation does: a
// handshake, then the request.
func (r *rig) bare(b *testing.B, requests ...string) {
	b.Helper()
	entrypoints, err := filepath.Glob(filepath.Join(r.home, "data/extensions/packages/*/*/*", hometest.Entrypoint))
	if err != nil || len(entrypoints) != 1 {
		b.Fatalf("%q, %v", entrypoints, err)
	}
	for _, request := range requests {
		for _, verb := range []string{"handshake", "invoke"} {
			cmd := exec.Command(entrypoints[0], verb)
			cmd.Env = []string{"PATH=/usr/bin:/bin", "FIRSTMATE_EXTENSION_STATE=" + r.state("extensions", extension)}
			cmd.Stdin = strings.NewReader(request + "\n")
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := cmd.Run(); err != nil || out.Len() == 0 {
				b.Fatalf("%v: %q", err, out.String())
			}
		}
	}
}

func poll(ref string) string {
	return `{"adapter_names":["feed"],"config_ref":"` + ref + `","operation":"source.poll","request_id":"sha256:0"}`
}

func question(operation string) string {
	return `{"adapter_names":["feed"],"content":"silent and terminal","operation":"` + operation + `","request_id":"sha256:0"}`
}

// Sixty-four sources of one home wait side by side: one pass starts them all, and
// their polls of three seconds take about three seconds.
func BenchmarkSideBySide(b *testing.B) {
	const sources = 64
	r := builtRig(b)
	for i := range sources {
		r.external(b, fmt.Sprintf("s%d", i), "sleep 3")
	}
	for b.Loop() {
		began := time.Now()
		var all sync.WaitGroup
		for range sources {
			all.Go(func() { r.bare(b, poll("sleep 3")) })
		}
		all.Wait()
		floor := time.Since(began)

		began = time.Now()
		if _, started, _, _ := r.reconcile(b); started != sources {
			b.Fatalf("started %d", started)
		}
		returned := time.Since(began)
		r.awaitIdle(b)
		b.ReportMetric(floor.Seconds(), "s-bare")
		b.ReportMetric(returned.Seconds(), "s-reconcile")
		b.ReportMetric(time.Since(began).Seconds(), "s-all")
		b.ReportMetric(time.Since(began).Seconds()/floor.Seconds(), "x-floor")
	}
}

func (r *rig) awaitIdle(b *testing.B) {
	b.Helper()
	eventually(b, "no runner is left", func() error {
		if left := names(b, r.claims); left != nil {
			return fmt.Errorf("claims: %q", left)
		}
		return nil
	})
}

// What a waiting source costs above its package's own process, and that it does
// nothing while it waits.
func BenchmarkWaiting(b *testing.B) {
	const sources = 64
	r := builtRig(b)
	path := fifo(b)
	for b.Loop() {
		for i := range sources {
			r.external(b, fmt.Sprintf("s%d", i), path)
		}
		r.reconcile(b)
		eventually(b, "every package waits", func() error {
			requests, _ := os.ReadFile(r.state("extensions", extension, "requests"))
			if n := bytes.Count(requests, []byte("source.poll")); n < sources {
				return fmt.Errorf("%d polls", n)
			}
			return nil
		})
		var pids []int
		for i := range sources {
			pids = append(pids, r.owner(b, fmt.Sprintf("s%d", i)))
		}
		var pss, threads, ticks int
		before := cpu(b, pids)
		time.Sleep(2 * time.Second)
		ticks = cpu(b, pids) - before
		for _, pid := range pids {
			pss += field(b, pid, "smaps_rollup", `(?m)^Pss: *(\d+) kB`)
			threads += field(b, pid, "status", `(?m)^Threads:\s*(\d+)`)
		}
		b.ReportMetric(float64(pss)/sources, "kB-pss/source")
		b.ReportMetric(float64(threads)/sources, "threads/source")
		b.ReportMetric(float64(ticks)/2*10, "ms-cpu/s") // of all of them
		if swept, err := r.host().SweepHome(b.Context()); err != nil || swept.Failed != nil {
			b.Fatalf("%v, %v", err, swept)
		}
		_ = os.Remove(r.state("extensions", extension, "requests"))
	}
}

func field(b *testing.B, pid int, file, re string) int {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	check(b, err)
	match := regexp.MustCompile(re).FindSubmatch(data)
	if match == nil {
		b.Fatalf("no %s in %s", re, data)
	}
	n, err := strconv.Atoi(string(match[1]))
	check(b, err)
	return n
}

// cpu is the processor time that the processes took so far, in ticks of 10 ms.
func cpu(b *testing.B, pids []int) (ticks int) {
	b.Helper()
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		check(b, err)
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			check(b, err)
			ticks += n
		}
	}
	return ticks
}

// A thousand registrations whose owners are all alive.
func BenchmarkThousand(b *testing.B) {
	r := builtRig(b)
	pid := stranger(b)
	identity := identityOf(b, pid)
	for i := range 1000 {
		source := fmt.Sprintf("s%d", i)
		if i == 0 {
			r.external(b, source, "none")
		} else {
			data, err := os.ReadFile(r.registration("s0"))
			check(b, err)
			check(b, os.WriteFile(r.registration(source), data, 0o600))
		}
		r.forge(b, source, pid, identity)
	}
	for _, command := range []string{"list", "reconcile"} {
		b.Run(command, func(b *testing.B) {
			for b.Loop() {
				s := r.run(b, command)
				if s.exit != 0 || s.stderr != "" || command == "list" && strings.Count(s.stdout, " live ") != 1000 {
					b.Fatalf("%d %s", s.exit, s.stderr)
				}
			}
		})
	}
	for i := range 1000 {
		check(b, os.Remove(r.claim(fmt.Sprintf("s%d", i))))
		check(b, os.Remove(r.registration(fmt.Sprintf("s%d", i))))
	}
}

// One event, from the start to the end of its source: poll, capture, silent,
// announce, terminal, retire. The package is started six times for it.
func BenchmarkEvent(b *testing.B) {
	r := builtRig(b)
	var ours, floor []time.Duration
	for b.Loop() {
		began := time.Now()
		r.bare(b, poll("terminal"), question("result.silent"), question("result.terminal"))
		floor = append(floor, time.Since(began))
		r.external(b, "s", "a terminal event")
		began = time.Now()
		if out := r.must(b, "start", "s"); !strings.HasPrefix(out, "retired: s") {
			b.Fatalf("%q", out)
		}
		ours = append(ours, time.Since(began))
	}
	median := func(ds []time.Duration) float64 {
		slices.Sort(ds)
		return float64(ds[len(ds)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(floor), "ms-bare")
	b.ReportMetric(median(ours), "ms-event")
	b.ReportMetric(median(ours)-median(floor), "ms-above")
}
