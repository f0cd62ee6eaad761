package strictjson_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
)

func short(s string) string {
	if len(s) > 3 {
		return "at most 3 bytes"
	}
	return ""
}

func TestValueReads(t *testing.T) {
	v, err := sample.Decode([]byte(` {"s":"a\nb","c":"v1","i":-5,"t":true,"f":false,"n":null,
		"ss":["x","y"],"is":[3,1],"oo":[{"k":"v"},null],"o":{"e":[],"z":{}}} `))
	if err != nil {
		t.Fatal(err)
	}
	v.Members("s", "c", "i", "t", "f", "n", "ss", "is", "oo", "o", "absent?")
	v.Get("c").Const("v1")
	if got := v.Get("s").String(short); got != "a\nb" {
		t.Errorf("s = %q", got)
	}
	if got := v.Get("i").Int(-5, 5); got != -5 {
		t.Errorf("i = %d", got)
	}
	if !v.Get("t").Bool() || v.Get("f").Bool() {
		t.Error("booleans")
	}
	if !v.Get("n").IsNull() || v.Get("t").IsNull() {
		t.Error("null")
	}
	if got := v.Get("ss").StringSet(0, 2, nil); !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("ss = %q", got)
	}
	if got := v.Get("is").IntSet(1, 3); !slices.Equal(got, []int64{3, 1}) {
		t.Errorf("is = %d", got)
	}
	elements := v.Get("oo").Array(2, 2)
	if len(elements) != 2 || elements[0].Get("k").String(nil) != "v" || !elements[1].IsNull() {
		t.Error("array of objects")
	}
	if v.Has("absent") || !v.Has("n") {
		t.Error("Has")
	}
	if e := v.Get("o").Get("e").Strings(0, math.MaxInt, nil); e == nil || len(e) != 0 {
		t.Errorf("empty array = %#v", e)
	}
	v.Get("o").Get("z").Members()
	if v.Err() != nil {
		t.Error(v.Err())
	}
}

func TestValueRefuses(t *testing.T) {
	for _, c := range []struct {
		doc, message string
		read         func(v *strictjson.Value)
	}{
		{`{"a":1}`, `sample: member "b" is missing`, func(v *strictjson.Value) { v.Members("a", "b") }},
		{`{"a":1}`, `sample: member "b" is missing`, func(v *strictjson.Value) { v.Get("b") }},
		{`{"a":[{}]}`, `sample: a[0]: member "b" is missing`, func(v *strictjson.Value) { v.Get("a").Array(1, 1)[0].Get("b") }},
		{"{\"a\":1,\n \"evil\":1}", `sample: unknown member at line 2, column 2`, func(v *strictjson.Value) { v.Members("a", "b?") }},
		{`{"a":null}`, `sample: a: must be a string`, func(v *strictjson.Value) { v.Get("a").String(nil) }},
		{`{"a":null}`, `sample: a: must be an object`, func(v *strictjson.Value) { v.Get("a").Members() }},
		{`{"a":null}`, `sample: a: must be an object`, func(v *strictjson.Value) { v.Get("a").Has("b") }},
		{`{"a":null}`, `sample: a: must be an array`, func(v *strictjson.Value) { v.Get("a").Array(0, 9) }},
		{`{"a":null}`, `sample: a: must be an integer`, func(v *strictjson.Value) { v.Get("a").Int(0, 9) }},
		{`{"a":"true"}`, `sample: a: must be true or false`, func(v *strictjson.Value) { v.Get("a").Bool() }},
		{`{"a":"evil"}`, `sample: a: must be at most 3 bytes`, func(v *strictjson.Value) { v.Get("a").String(short) }},
		{`{"a":"evil"}`, `sample: a: must be "v1"`, func(v *strictjson.Value) { v.Get("a").Const("v1") }},
		{`{"a":1.0}`, `sample: a: must be an integer without`, func(v *strictjson.Value) { v.Get("a").Int(0, 9) }},
		{`{"a":1e0}`, `sample: a: must be an integer without`, func(v *strictjson.Value) { v.Get("a").Int(0, 9) }},
		{`{"a":1E0}`, `sample: a: must be an integer without`, func(v *strictjson.Value) { v.Get("a").Int(0, 9) }},
		{`{"a":-0}`, `sample: a: must be an integer without`, func(v *strictjson.Value) { v.Get("a").Int(0, 9) }},
		{`{"a":10}`, `sample: a: must be an integer from 0 to 9`, func(v *strictjson.Value) { v.Get("a").Int(0, 9) }},
		{`{"a":-1}`, `sample: a: must be an integer from 0 to 9`, func(v *strictjson.Value) { v.Get("a").Int(0, 9) }},
		{`{"a":99999999999999999999}`, `sample: a: must be an integer from 0`, func(v *strictjson.Value) { v.Get("a").Int(0, strictjson.MaxInt) }},
		{`{"a":[]}`, `sample: a: the number of elements must be at least 1`, func(v *strictjson.Value) { v.Get("a").IntSet(0, 9) }},
		{`{"a":[1,2,3]}`, `sample: a: the number of elements must be 1 to 2`, func(v *strictjson.Value) { v.Get("a").Array(1, 2) }},
		{`{"a":[1,2,1]}`, `sample: a[2]: stands in the array twice`, func(v *strictjson.Value) { v.Get("a").IntSet(0, 9) }},
		{`{"a":["x","\u0078"]}`, `sample: a[1]: stands in the array twice`, func(v *strictjson.Value) { v.Get("a").StringSet(0, 9, nil) }},
		{`{"a":{"b":[{"c":["x",1]}]}}`, `sample: a.b[0].c[1]: must be a string`, func(v *strictjson.Value) {
			v.Get("a").Get("b").Array(1, 1)[0].Get("c").Strings(0, 9, nil)
		}},
	} {
		v, err := sample.Decode([]byte(c.doc))
		if err != nil {
			t.Fatal(err)
		}
		c.read(v)
		if err := v.Err(); !fault.Is(err, fault.SchemaInvalid) || !strings.HasPrefix(err.Error(), c.message) || strings.Contains(err.Error(), "evil") {
			t.Errorf("%s: got %v, want %s", c.doc, err, c.message)
		}
	}
}

// After the first refusal every cursor of the document answers with nothing and
// the refusal stays what it was.
func TestFirstRefusalSticks(t *testing.T) {
	v, err := sample.Decode([]byte(`{"a":"x","i":1,"t":true,"n":null,"l":["x"],"100%d":0}`))
	if err != nil {
		t.Fatal(err)
	}
	a, i, tr, n, l := v.Get("a"), v.Get("i"), v.Get("t"), v.Get("n"), v.Get("l")
	v.Fail("first %s", "100%d")
	first := v.Err()
	v.Fail("second")
	v.Members("x")
	if a.String(nil) != "" || i.Int(0, 9) != 0 || tr.Bool() || n.IsNull() || v.Has("a") ||
		len(l.Array(0, 9)) != 0 || len(l.Strings(0, 9, nil)) != 0 || len(l.IntSet(0, 9)) != 0 ||
		v.Get("a").Get("b").Get("c").String(nil) != "" {
		t.Error("a cursor answered after the refusal")
	}
	if v.Err() != first || first.Error() != "sample: first 100%d" {
		t.Errorf("the refusal became %v", v.Err())
	}
}

// A document cut at any depth comes to the same parts, whatever white space and
// brackets stand between and inside strings.
func TestSplit(t *testing.T) {
	for _, text := range []string{
		`{"a":[1,"]}",[{"b":"\\"},"\\\"[",{}],-1e9,true,null]}`,
		"\r\n { \"a\" :\t[ 1 , \"]}\" , [ { \"b\" : \"\\\\\" } , \"\\\\\\\"[\" , { } ] , -1e9 , true , null ] } \n",
	} {
		v, err := sample.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		a := v.Get("a").Array(6, 6)
		inner := a[2].Array(3, 3)
		if got := inner[0].Get("b").String(nil); got != `\` {
			t.Errorf("b = %q", got)
		}
		if got := inner[1].String(nil); got != `\"[` {
			t.Errorf("the second = %q", got)
		}
		inner[2].Members()
		if a[0].Int(1, 1) != 1 || a[1].String(nil) != "]}" || !a[4].Bool() || !a[5].IsNull() || v.Err() != nil {
			t.Errorf("%s: %v", text, v.Err())
		}
		a[3].Fail("must be here")
		if err := v.Err(); !strings.HasSuffix(err.Error(), "a[3]: must be here") {
			t.Error(err)
		}
	}
}
