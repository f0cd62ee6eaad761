// Command bench measures what the programs may cost at most, and prints a table:
//
//	go run ./tests/bench [-rounds N] [NAME...]
//
// Each bar has a floor, what the same work costs with the system's own tools or
// without a host, measured in the same run: rounds of the two alternate, so that
// what slows the machine down slows both. The figures are medians. It builds the
// programs as they are shipped, and never fails because a machine is slow: the
// table is for people. docs/performance.md says what each bar is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

// bar is one thing that may cost at most so much. The table of them is bars, to
// which each file of this package appends its own.
type bar struct {
	name, what string
	unit       unit
	rounds     int // at most, for what takes long; 0 for as many as asked
	each       int // measurements a round, for what is short; 0 for one
	needsProc  bool

	// setUp prepares both sides. floor may be nil.
	setUp func(context.Context, *site) (reached, floor side, err error)
	// limit says what reached may be, and how that is written.
	limit func(floor float64) (float64, string)
}

var bars []bar

// side does one round and returns what it cost, in the bar's unit.
type side func(context.Context) (float64, error)

type unit string

const (
	milliseconds unit = "ms"
	megabytes    unit = "MB" // 1,000,000 bytes
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	rounds := flag.Int("rounds", 5, "how often each side is measured")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: bench [-rounds N] [NAME...]\nnames: %s\n", strings.Join(names(), " "))
		flag.PrintDefaults()
	}
	flag.Parse()
	for _, name := range flag.Args() {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("there is no %s; there are %s", name, strings.Join(names(), ", "))
		}
	}
	if *rounds < 1 {
		return errors.New("-rounds must be positive")
	}
	s, err := newSite(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	fmt.Printf("%s, %d CPUs, medians of %d rounds\n", kernel(), runtime.NumCPU(), *rounds)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "name\treached\tfloor\tratio\tbar\t\t\t")
	for _, b := range bars {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), b.name) || b.needsProc && runtime.GOOS != "linux" {
			continue
		}
		fmt.Fprintln(os.Stderr, b.name+":", b.what)
		row, err := b.measure(ctx, s, *rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		fmt.Fprintln(table, row)
	}
	return table.Flush()
}

func names() (all []string) {
	for _, b := range bars {
		all = append(all, b.name)
	}
	return all
}

// measure returns the bar's row of the table.
func (b bar) measure(ctx context.Context, s *site, rounds int) (string, error) {
	reachedSide, floorSide, err := b.setUp(ctx, s)
	if err != nil {
		return "", err
	}
	if b.rounds > 0 {
		rounds = min(rounds, b.rounds)
	}
	var reached, floor []float64
	for range rounds * max(b.each, 1) {
		for _, side := range []struct {
			do    side
			costs *[]float64
		}{{reachedSide, &reached}, {floorSide, &floor}} {
			if side.do == nil {
				continue
			}
			cost, err := side.do(ctx)
			if err != nil {
				return "", err
			}
			*side.costs = append(*side.costs, cost)
		}
	}
	r, f := median(reached), median(floor)
	limit, written := b.limit(f)
	verdict := "within"
	if r > limit {
		verdict = "OVER"
	}
	floorText, ratio := "-", "-"
	if floorSide != nil {
		floorText, ratio = b.unit.format(f), fmt.Sprintf("%.2f", r/f)
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t= %s\t%s\t", b.name, b.unit.format(r), floorText, ratio, written, b.unit.format(limit), verdict), nil
}

func (u unit) format(x float64) string { return fmt.Sprintf("%.1f %s", x, u) }

func median(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	slices.Sort(xs)
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

// The ways in which a bar is written.

func times(factor float64) func(float64) (float64, string) {
	return func(floor float64) (float64, string) { return factor * floor, fmt.Sprintf("%.1f x floor", factor) }
}

func plus(more float64, u unit) func(float64) (float64, string) {
	return func(floor float64) (float64, string) { return floor + more, fmt.Sprintf("floor + %g %s", more, u) }
}

func atMost(limit float64, u unit) func(float64) (float64, string) {
	return func(float64) (float64, string) { return limit, "at most" }
}

// site is where a run happens: the programs and a directory that goes with it.
type site struct {
	bin string
	dir string
	n   int
}

func newSite(ctx context.Context) (*site, error) {
	dir, err := os.MkdirTemp("", "hawser-bench.")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // no package is bound through a link
	}
	if err != nil {
		return nil, err
	}
	s := &site{bin: filepath.Join(dir, "bin"), dir: dir}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", s.bin+"/", "hawser/cmd/fm-extension", "hawser/cmd/fm-procevent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot build the programs: %w", err), s.close())
	}
	return s, nil
}

// fresh is a path in the site that was not used before. What a round makes stays
// until the end: removing a big tree would slow the next round down.
func (s *site) fresh(name string) string {
	s.n++
	return filepath.Join(s.dir, fmt.Sprintf("%s-%d", name, s.n))
}

// close removes everything; installed packages are read-only.
func (s *site) close() error {
	_ = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	})
	return os.RemoveAll(s.dir)
}

func kernel() string {
	out, err := exec.Command("uname", "-srm").Output()
	if err != nil {
		return runtime.GOOS
	}
	return strings.TrimSpace(string(out))
}
