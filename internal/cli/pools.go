package cli

import (
	"context"
	"math/big"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

func (a *app) poolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pools",
		Short: "Show the address pools and how full they are",
		Long: `Show the address pools and how full they are. A resting address was given back
lately, and no pod gets it until its cooldown is over.`,
		Example: `  berth pools
  berth pools -o json | jq '.[] | select(.default)'`,
		RunE: func(c *cobra.Command, _ []string) error { return a.pools(c.Context()) },
	}
}

func (a *app) pools(ctx context.Context) error {
	var pools []api.Pool
	err := a.ask(ctx, func(ctx context.Context, c *client.Client) (err error) {
		pools, err = c.Pools(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return a.print(pools, func() { a.showPools(pools) })
}

func (a *app) showPools(pools []api.Pool) {
	t := newTable("POOL", "CIDR", "SIZE", "USED", "RESTING", "FREE", "STATE")
	for _, p := range pools {
		name := p.Name
		if p.Default && name != "default" {
			name += " (default)"
		}
		for _, c := range p.CIDRs {
			size, free := c.Size, ""
			state := cell{"ok", green}
			if n, ok := new(big.Int).SetString(c.Size, 10); ok {
				left := new(big.Int).Sub(n, big.NewInt(int64(c.Used+c.Resting)))
				size, free = figure(n), figure(left)
				if left.Sign() <= 0 {
					state = cell{"full", red}
				}
			}
			if c.Draining {
				state, free = cell{"draining", yellow}, ""
			}
			t.row(name, c.CIDR, size, strconv.Itoa(c.Used), strconv.Itoa(c.Resting), free, state)
		}
	}
	a.table(t)
}
